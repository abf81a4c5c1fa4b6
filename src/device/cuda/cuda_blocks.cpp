// SPDX-License-Identifier: Apache-2.0
#include "cuda_blocks.hpp"

#include <algorithm>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

#include "../last_uses.hpp"

namespace mica::detail {

CudaBlocks::~CudaBlocks() {
  for (Block& block : blocks_) close(block);
}

Arena::Taken CudaBlocks::take(std::int64_t bytes) {
  Block* best = nullptr;
  for (Block& block : blocks_) {
    const bool fits = block.is_free && block.bytes >= bytes &&
                      block.bytes - bytes <= std::max(bytes / 8, static_cast<std::int64_t>(memory_.granularity()) - 1);
    if (fits && (best == nullptr || block.bytes < best->bytes)) best = &block;
  }
  if (best == nullptr) return {make(bytes), {}};
  best->is_free = false;
  return {best->address, std::exchange(best->pending, {})};
}

std::uintptr_t CudaBlocks::make(std::int64_t bytes) {
  const std::uintptr_t unit = memory_.granularity();
  const std::uintptr_t rounded = round_up(static_cast<std::uintptr_t>(bytes), unit);
  const cuda::Driver& driver = memory_.driver();
  CUdeviceptr reserved = 0;
  driver.check(driver.mem_address_reserve(&reserved, rounded, unit, 0, 0), "cuMemAddressReserve");
  const auto address = static_cast<std::uintptr_t>(reserved);
  const auto handle = memory_.map(address, rounded);
  if (handle && memory_.allow(address, address + rounded)) {
    blocks_.push_back({address, static_cast<std::int64_t>(rounded), *handle, false, {}});
    resident_bytes_ += blocks_.back().bytes;
    return address;
  }
  if (handle) memory_.unmap(address, rounded, *handle);
  static_cast<void>(driver.mem_address_free(address, rounded));
  return 0;
}

void CudaBlocks::give(std::uintptr_t address, std::vector<Event> pending) {
  const auto it = std::ranges::find(blocks_, address, &Block::address);
  invariant(it != blocks_.end() && !it->is_free, "memory given back once, at the address handed out");
  it->is_free = true;
  it->pending = std::move(pending);
}

std::int64_t CudaBlocks::release() {
  std::int64_t released = 0;
  for (Block& block : blocks_) {
    if (!block.is_free) continue;
    released += block.bytes;
    close(block);
  }
  std::erase_if(blocks_, [](const Block& block) { return block.is_free; });
  return released;
}

void CudaBlocks::close(Block& block) {
  wait_until_over(block.pending);
  for (const std::weak_ptr<BlockUser>& user : users_) {
    if (const auto living = user.lock())
      living->forget_block(reinterpret_cast<const void*>(block.address));  // NOLINT(performance-no-int-to-ptr)
  }
  std::erase_if(users_, [](const auto& user) { return user.expired(); });
  const auto bytes = static_cast<std::uintptr_t>(block.bytes);
  memory_.unmap(block.address, bytes, block.handle);
  static_cast<void>(memory_.driver().mem_address_free(block.address, bytes));
  resident_bytes_ -= block.bytes;
}

std::int64_t CudaBlocks::bytes_of(std::uintptr_t address) const {
  const auto it = std::ranges::find(blocks_, address, &Block::address);
  return it == blocks_.end() ? 0 : it->bytes;
}

}  // namespace mica::detail
