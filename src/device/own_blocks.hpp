// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "mica/device/block_memory.hpp"

#include "arena.hpp"

namespace mica::detail {

/// Separately allocated blocks, each kept for the next buffer of nearly its size. [Note: blocks of their own]
class OwnBlocks {
 public:
  virtual ~OwnBlocks() = default;
  OwnBlocks(const OwnBlocks&) = delete;
  OwnBlocks& operator=(const OwnBlocks&) = delete;

  /// A free block that is at most an eighth too long, the shortest, then the oldest; else a new one. Address 0:
  /// memory is exhausted.
  [[nodiscard]] Arena::Taken take(std::int64_t bytes);
  void give(std::uintptr_t address, std::vector<Event> pending);
  /// Frees free blocks. The host waits for their last uses. @return bytes freed
  std::int64_t release();

  /// Of the block that begins there; 0 if there is none.
  [[nodiscard]] std::int64_t bytes_of(std::uintptr_t address) const;
  [[nodiscard]] bool contains(std::uintptr_t address) const;
  [[nodiscard]] std::int64_t resident_bytes() const { return resident_bytes_; }
  void add_user(std::weak_ptr<BlockUser> user) { users_.push_back(std::move(user)); }

 protected:
  OwnBlocks() = default;
  /// For the destructors of derived classes, whose memory it is.
  void close_all();

 private:
  struct Block {
    std::uintptr_t address = 0;
    std::int64_t bytes = 0;
    bool is_free = false;
    std::vector<Event> pending;
  };
  /// Sizes are multiples of this, in bytes.
  [[nodiscard]] virtual std::int64_t granularity() const = 0;
  /// @returns its address; 0: memory is exhausted
  [[nodiscard]] virtual std::uintptr_t make(std::int64_t bytes) = 0;
  virtual void free(std::uintptr_t address, std::int64_t bytes) = 0;
  void close(Block& block);

  std::vector<Block> blocks_;  // in order of creation: the same on ranks that make the same calls
  std::vector<std::weak_ptr<BlockUser>> users_;
  std::int64_t resident_bytes_ = 0;
};

/// A pool whose memory is an arena, with blocks of their own beside it. @tparam Base  the pool
template <class Base>
class WithOwnBlocks : public Base, public BlockMemory {
 public:
  WithOwnBlocks(std::unique_ptr<Pages> pages, std::unique_ptr<OwnBlocks> blocks) : arena_(std::move(pages)), blocks_(std::move(blocks)) {}

  [[nodiscard]] Buffer allocate_block(std::int64_t bytes, MemoryRole role, Stream& home) override {
    wants_block_ = true;
    struct Reset {
      bool& flag;
      ~Reset() { flag = false; }
    } const reset{wants_block_};
    return this->allocate(bytes, role, home);
  }
  [[nodiscard]] std::int64_t block_bytes(const void* begin) const override { return blocks_->bytes_of(number(begin)); }
  void add_block_user(std::weak_ptr<BlockUser> user) override { blocks_->add_user(std::move(user)); }

 protected:
  static std::uintptr_t number(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }
  [[nodiscard]] const Arena& arena() const { return arena_; }
  [[nodiscard]] const OwnBlocks& blocks() const { return *blocks_; }

  /// Only when there is no more, free memory elsewhere in the range, and then that of blocks, is returned first.
  typename Base::Taken take(std::int64_t bytes, Stream& home) override {
    Arena::Taken taken = wants_block_ ? take_block(bytes) : take_pages(bytes, home);
    return {reinterpret_cast<void*>(taken.address), std::move(taken.pending)};  // NOLINT(performance-no-int-to-ptr)
  }
  void give(void* data, Stream* home, std::vector<Event> pending) override {
    if (!arena_.contains(number(data))) return blocks_->give(number(data), std::move(pending));
    arena_.give(number(data), home, std::move(pending));
  }
  void release_free_memory() override {
    arena_.release(std::numeric_limits<std::int64_t>::max());
    blocks_->release();
  }
  [[nodiscard]] std::int64_t reserved_bytes() const override { return arena_.resident_bytes() + blocks_->resident_bytes(); }

 private:
  Arena::Taken take_pages(std::int64_t bytes, Stream& home) {
    Arena::Taken taken = arena_.take(bytes, home);
    if (taken.address == 0) return {};
    if (arena_.commit(taken.address) || (arena_.release(arena_.not_resident_bytes_of(taken.address)) > 0 && arena_.commit(taken.address)) ||
        (blocks_->release() > 0 && arena_.commit(taken.address))) {
      return taken;
    }
    arena_.give(taken.address, nullptr, std::move(taken.pending));
    return {};
  }

  Arena::Taken take_block(std::int64_t bytes) {
    Arena::Taken taken = blocks_->take(bytes);
    if (taken.address == 0 && arena_.release(bytes) + blocks_->release() > 0) taken = blocks_->take(bytes);
    return taken;
  }

  Arena arena_;
  std::unique_ptr<OwnBlocks> blocks_;
  bool wants_block_ = false;  // what take() is asked for
};

}  // namespace mica::detail
