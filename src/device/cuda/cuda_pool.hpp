// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "mica/device/pool.hpp"

#include "cuda_stream.hpp"

namespace mica::detail {

/// Base of the pools of a GPU's memory: which GPU, and how the host accesses its memory.
class CudaPool : public Pool {
 public:
  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cuda; }
  [[nodiscard]] DeviceKind device_of(const void* data) const override;
  void copy(void* to, const void* from, std::int64_t bytes) const override;

 protected:
  CudaPool();  ///< of the calling thread's GPU
  void fill_bytes(Stream& home, void* data, std::int64_t bytes, unsigned char byte) override;
  [[nodiscard]] Event last_use(Stream& home) override { return record_last_use(home); }
  /// The calling thread works on the pool's GPU from now on.
  void stay_on_gpu() const;

 private:
  int gpu_;
};

// One for each GpuPoolKind.
[[nodiscard]] std::unique_ptr<Pool> make_arena_cuda_pool();
[[nodiscard]] std::unique_ptr<Pool> make_plain_cuda_pool();

}  // namespace mica::detail
