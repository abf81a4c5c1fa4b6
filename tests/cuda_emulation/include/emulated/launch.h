// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a kernel gets from cudaLaunchKernelEx to the scheduler of blocks.
#include <memory>
#include <tuple>

#include "../cuda_runtime_api.h"

namespace mica::cuda_emulation {

/// One launch: call(arguments) runs the kernel as the thread that threadIdx and blockIdx name.
struct Launch {
  void (*call)(void* arguments) noexcept;
  std::shared_ptr<void> arguments;
};

/// Checks the configuration and enqueues the launch: all blocks, one after the other.
cudaError_t run_kernel(const cudaLaunchConfig_t& config, const Launch& launch);

}  // namespace mica::cuda_emulation

template <class... ExpTypes, class... ActTypes>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(ExpTypes...), ActTypes&&... args) {
  struct Call {
    void (*kernel)(ExpTypes...);
    std::tuple<ExpTypes...> arguments;
  };
  static_assert(sizeof(Call::arguments) <= 32764, "a kernel's parameters take at most 32764 bytes");
  return mica::cuda_emulation::run_kernel(*config,
                                          {[](void* data) noexcept {
                                             auto& it = *static_cast<Call*>(data);
                                             std::apply(it.kernel, it.arguments);
                                           },
                                           std::make_shared<Call>(kernel, std::tuple<ExpTypes...>(static_cast<ExpTypes>(args)...))});
}
