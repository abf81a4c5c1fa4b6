// SPDX-License-Identifier: Apache-2.0
#include "own_blocks.hpp"

#include <algorithm>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

#include "last_uses.hpp"

namespace mica::detail {

Arena::Taken OwnBlocks::take(std::int64_t bytes) {
  Block* best = nullptr;
  for (Block& block : blocks_) {
    const bool fits = block.is_free && block.bytes >= bytes && block.bytes - bytes <= std::max(bytes / 8, granularity() - 1);
    if (fits && (best == nullptr || block.bytes < best->bytes)) best = &block;
  }
  if (best != nullptr) {
    best->is_free = false;
    return {best->address, std::exchange(best->pending, {})};
  }
  const std::int64_t rounded = round_up(bytes, granularity());
  const std::uintptr_t address = make(rounded);
  if (address == 0) return {};
  blocks_.push_back({address, rounded, false, {}});
  resident_bytes_ += rounded;
  return {address, {}};
}

void OwnBlocks::give(std::uintptr_t address, std::vector<Event> pending) {
  const auto it = std::ranges::find(blocks_, address, &Block::address);
  invariant(it != blocks_.end() && !it->is_free, "memory given back once, at the address handed out");
  it->is_free = true;
  it->pending = std::move(pending);
}

std::int64_t OwnBlocks::release() {
  const std::int64_t before = resident_bytes_;
  for (Block& block : blocks_) {
    if (block.is_free) close(block);
  }
  std::erase_if(blocks_, [](const Block& block) { return block.is_free; });
  return before - resident_bytes_;
}

void OwnBlocks::close_all() {
  for (Block& block : blocks_) close(block);
  blocks_.clear();
}

void OwnBlocks::close(Block& block) {
  wait_until_over(block.pending);
  for (const std::weak_ptr<BlockUser>& user : users_) {
    if (const auto living = user.lock())
      living->forget_block(reinterpret_cast<const void*>(block.address));  // NOLINT(performance-no-int-to-ptr)
  }
  std::erase_if(users_, [](const auto& user) { return user.expired(); });
  free(block.address, block.bytes);
  resident_bytes_ -= block.bytes;
}

std::int64_t OwnBlocks::bytes_of(std::uintptr_t address) const {
  const auto it = std::ranges::find(blocks_, address, &Block::address);
  return it == blocks_.end() ? 0 : it->bytes;
}

bool OwnBlocks::contains(std::uintptr_t address) const {
  return std::ranges::any_of(blocks_, [&](const Block& block) {
    return address >= block.address && address < block.address + static_cast<std::uintptr_t>(block.bytes);
  });
}

}  // namespace mica::detail
