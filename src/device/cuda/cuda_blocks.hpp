// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "../own_blocks.hpp"
#include "physical_memory.hpp"

namespace mica::detail {

/// Each of exactly one piece of the GPU's memory.
class CudaBlocks final : public OwnBlocks {
 public:
  CudaBlocks() = default;
  ~CudaBlocks() override { close_all(); }
  CudaBlocks(const CudaBlocks&) = delete;
  CudaBlocks& operator=(const CudaBlocks&) = delete;

 private:
  [[nodiscard]] std::int64_t granularity() const override { return static_cast<std::int64_t>(memory_.granularity()); }
  [[nodiscard]] std::uintptr_t make(std::int64_t bytes) override;
  void free(std::uintptr_t address, std::int64_t bytes) override;

  PhysicalMemory memory_;
  std::map<std::uintptr_t, CUmemGenericAllocationHandle> handles_;  // by the address of the block
};

}  // namespace mica::detail
