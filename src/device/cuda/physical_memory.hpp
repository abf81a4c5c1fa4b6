// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "mica/device/cuda/driver.hpp"

namespace mica::detail {

/// The calling thread's GPU's memory, piece by piece, behind addresses that the caller has reserved. Pieces can be shared
/// with other processes and GPUs as far as the GPU supports it (file descriptors, fabric handles, GPUDirect RDMA), which NCCL
/// and CUDA-aware MPIs require of memory that they let others access. It costs nothing until they do.
class PhysicalMemory {
 public:
  PhysicalMemory();

  /// A piece's size and address are multiples of this, in bytes.
  [[nodiscard]] std::uintptr_t granularity() const { return granularity_; }
  [[nodiscard]] const cuda::Driver& driver() const { return driver_; }

  /// A piece of physical memory behind these addresses, which allow() lets the GPU use. None: memory is exhausted.
  [[nodiscard]] std::optional<CUmemGenericAllocationHandle> map(std::uintptr_t address, std::uintptr_t bytes);
  /// False: the driver has no memory left for it.
  [[nodiscard]] bool allow(std::uintptr_t begin, std::uintptr_t end) const;
  void unmap(std::uintptr_t address, std::uintptr_t bytes, CUmemGenericAllocationHandle handle) const;

 private:
  [[nodiscard]] bool supports(CUdevice_attribute what) const;

  cuda::Driver driver_;
  int gpu_;
  CUmemAllocationProp properties_{};
  std::uintptr_t granularity_ = 0;
};

}  // namespace mica::detail
