#pragma once

#include <memory>

#include "mica/device/pool.hpp"

namespace mica {

/// Who wants to know before a block of its own gives its memory back: a library that the block is registered with.
class BlockUser {
 public:
  virtual ~BlockUser() = default;
  BlockUser(const BlockUser&) = delete;
  BlockUser& operator=(const BlockUser&) = delete;
  /// Nothing uses the block at `begin` any more. The pool's host thread; throws nothing.
  virtual void forget_block(const void* begin) noexcept = 0;

 protected:
  BlockUser() = default;
};

/// What a GPU's pool can do beside being a Pool. [Note: blocks of their own]
/// A buffer is otherwise cut from pages that it shares with its neighbours and that stand on many pieces of physical
/// memory. A block of its own is one such piece, from its beginning to its end: what a library wants that lets other
/// GPUs and network cards into a buffer, since those are let into pieces of physical memory. It costs memory: blocks
/// are rounded up to the GPU's granularity (2 MiB), and only buffers of nearly their size use them again.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  /// As Pool::allocate(), at the beginning of a block of its own. Which blocks are used again depends on the order of
  /// these calls only, so ranks that make the same ones get buffers in blocks of the same sizes.
  [[nodiscard]] virtual Buffer allocate_block(std::int64_t bytes, MemoryRole role, Stream& home) = 0;
  /// Of the block that begins at `begin`; 0 where none does.
  [[nodiscard]] virtual std::int64_t block_bytes(const void* begin) const = 0;
  /// From now on told of each block that goes, as long as it lives.
  virtual void add_block_user(std::weak_ptr<BlockUser> user) = 0;

 protected:
  BlockMemory() = default;
};

}  // namespace mica
