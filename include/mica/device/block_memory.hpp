// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "mica/device/pool.hpp"

namespace mica {

/// Is told before a block's memory is freed: a library that the block is registered with.
class BlockUser {
 public:
  virtual ~BlockUser() = default;
  BlockUser(const BlockUser&) = delete;
  BlockUser& operator=(const BlockUser&) = delete;
  /// Nothing uses the block at `begin` any more. Called on the pool's host thread; throws nothing.
  virtual void forget_block(const void* begin) noexcept = 0;

 protected:
  BlockUser() = default;
};

/// What a GPU's pool can do in addition to Pool. [Note: blocks of their own]
/// Ordinary buffers are cut from pages that they share with their neighbours and that span many pieces of physical memory. A
/// block of its own is exactly one such piece. A library that lets other GPUs and network cards access a buffer needs that,
/// since access is granted per piece of physical memory. It costs memory: blocks are rounded up to the GPU's granularity (2
/// MiB), and only buffers of nearly the same size reuse them.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  /// As Pool::allocate(), at the beginning of a block of its own. Which blocks are reused depends on the order of these calls
  /// only, so ranks that make the same calls get buffers in blocks of the same sizes.
  [[nodiscard]] virtual Buffer allocate_block(std::int64_t bytes, MemoryRole role, Stream& home) = 0;
  /// Size of the block that begins at `begin`; 0 if there is none.
  [[nodiscard]] virtual std::int64_t block_bytes(const void* begin) const = 0;
  /// Tells `user` of each block that is freed from now on, as long as it lives.
  virtual void add_block_user(std::weak_ptr<BlockUser> user) = 0;

 protected:
  BlockMemory() = default;
};

}  // namespace mica
