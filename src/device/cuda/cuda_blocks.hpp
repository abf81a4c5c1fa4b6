// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mica/device/cuda/block_memory.hpp"

#include "../arena.hpp"
#include "physical_memory.hpp"

namespace mica::detail {

/// Separately allocated blocks, each kept for the next buffer of nearly its size. [Note: blocks of their own]
class CudaBlocks {
 public:
  CudaBlocks() = default;
  ~CudaBlocks();
  CudaBlocks(const CudaBlocks&) = delete;
  CudaBlocks& operator=(const CudaBlocks&) = delete;

  /// A free block that is at most an eighth too long, the shortest, then the oldest; else a new one. Address 0:
  /// memory is exhausted.
  [[nodiscard]] Arena::Taken take(std::int64_t bytes);
  void give(std::uintptr_t address, std::vector<Event> pending);
  /// Returns free blocks' memory to the driver. The host waits for their last uses. @return bytes returned
  std::int64_t release();

  /// Of the block that begins there; 0 if there is none.
  [[nodiscard]] std::int64_t bytes_of(std::uintptr_t address) const;
  [[nodiscard]] std::int64_t resident_bytes() const { return resident_bytes_; }
  void add_user(std::weak_ptr<BlockUser> user) { users_.push_back(std::move(user)); }

 private:
  struct Block {
    std::uintptr_t address = 0;
    std::int64_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    bool is_free = false;
    std::vector<Event> pending;
  };
  [[nodiscard]] std::uintptr_t make(std::int64_t bytes);
  void close(Block& block);

  PhysicalMemory memory_;
  std::vector<Block> blocks_;  // in order of creation: the same on ranks that make the same calls
  std::vector<std::weak_ptr<BlockUser>> users_;
  std::int64_t resident_bytes_ = 0;
};

}  // namespace mica::detail
