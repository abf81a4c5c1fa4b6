// SPDX-License-Identifier: Apache-2.0
#include "arena.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

#include "last_uses.hpp"

namespace mica::detail {
namespace {

std::int64_t length(std::uintptr_t begin, std::uintptr_t end) { return static_cast<std::int64_t>(end - begin); }

}  // namespace

Arena::Arena(std::unique_ptr<Pages> pages) : pages_(std::move(pages)) {
  blocks_[pages_->begin()].end = pages_->end();
  absent_[pages_->begin()] = pages_->end();
  index(blocks_.begin());
}

Arena::~Arena() { wait_for_last_uses(pages_->begin(), pages_->end()); }

Arena::Taken Arena::take(std::int64_t bytes, Stream& home) {
  const auto rounded = static_cast<std::int64_t>(round_up(static_cast<std::uintptr_t>(bytes), pages_->alignment()));
  const std::uintptr_t address = choose(rounded, &home);
  if (address == 0) return {};
  const auto it = blocks_.find(address);
  unindex(it);
  Block& block = it->second;
  const std::uintptr_t cut = address + static_cast<std::uintptr_t>(rounded);
  if (cut < block.end) {
    index(blocks_.emplace(cut, block).first);
    block.end = cut;
  }
  block.is_free = false;
  in_use_bytes_ += rounded;
  return {address, take_last_uses(address, cut)};
}

/// The smallest block that fits, the lowest address among equals. A block that only `home` has used needs no wait and is
/// preferred unless another one fits much better.
std::uintptr_t Arena::choose(std::int64_t bytes, const Stream* home) const {
  constexpr std::pair<std::int64_t, std::uintptr_t> kNone{std::numeric_limits<std::int64_t>::max(), 0};
  auto own = kNone;
  auto other = kNone;
  for (const FreeOfHome& entry : free_) {
    const auto fit = entry.blocks.lower_bound({bytes, 0});
    if (fit == entry.blocks.end()) continue;
    auto& best = entry.home == home ? own : other;
    best = std::min(best, *fit);
  }
  const bool own_is_close = own != kNone && own.first - bytes <= bytes / 8;
  return own_is_close ? own.second : std::min(own, other).second;
}

void Arena::give(std::uintptr_t address, Stream* home, std::vector<Event> pending) {
  auto it = blocks_.find(address);
  invariant(it != blocks_.end() && !it->second.is_free, "memory given back once, at the address handed out");
  Block& block = it->second;
  in_use_bytes_ -= length(address, block.end);
  block.is_free = true;
  block.home = home;
  LastUse last{block.end, {}};
  for (const Event& event : pending) merge_event(last.pending, event);
  if (!last.pending.empty()) last_uses_.emplace(address, std::move(last));

  if (const auto next = std::next(it); next != blocks_.end() && next->second.is_free) {
    unindex(next);
    block.end = next->second.end;
    if (block.home != next->second.home) block.home = nullptr;
    blocks_.erase(next);
  }
  if (it != blocks_.begin() && std::prev(it)->second.is_free) {
    const auto previous = std::prev(it);
    unindex(previous);
    previous->second.end = block.end;
    if (previous->second.home != block.home) previous->second.home = nullptr;
    blocks_.erase(it);
    it = previous;
  }
  index(it);
}

/// Removes the last uses of [begin, end), which gets a new owner, and returns their events. No use begins before `begin` and
/// reaches into the range: blocks are cut from the low end of free ones.
std::vector<Event> Arena::take_last_uses(std::uintptr_t begin, std::uintptr_t end) {
  std::vector<Event> pending;
  auto it = last_uses_.lower_bound(begin);
  while (it != last_uses_.end() && it->first < end) {
    for (const Event& event : it->second.pending) merge_event(pending, event);
    if (end < it->second.end) last_uses_.emplace(end, std::move(it->second));
    it = last_uses_.erase(it);
  }
  return pending;
}

void Arena::wait_for_last_uses(std::uintptr_t begin, std::uintptr_t end) const {
  auto it = last_uses_.upper_bound(begin);
  if (it != last_uses_.begin() && std::prev(it)->second.end > begin) --it;
  for (; it != last_uses_.end() && it->first < end; ++it) wait_until_over(it->second.pending);
}

Arena::BySize& Arena::free_of(Stream* home) {
  for (FreeOfHome& entry : free_) {
    if (entry.home == home) return entry.blocks;
  }
  free_.push_back({home, {}});
  return free_.back().blocks;
}

void Arena::index(Blocks::const_iterator block) {
  free_of(block->second.home).emplace(length(block->first, block->second.end), block->first);
}

void Arena::unindex(Blocks::const_iterator block) {
  free_of(block->second.home).erase({length(block->first, block->second.end), block->first});
}

/// Visits the parts of [begin, end) that are not resident.
template <class Visit>
void Arena::for_each_hole(std::uintptr_t begin, std::uintptr_t end, Visit visit) const {
  auto it = absent_.upper_bound(begin);
  if (it != absent_.begin() && std::prev(it)->second > begin) --it;
  for (; it != absent_.end() && it->first < end; ++it) visit(std::max(begin, it->first), std::min(end, it->second));
}

std::int64_t Arena::absent_bytes(std::uintptr_t begin, std::uintptr_t end) const {
  std::int64_t bytes = 0;
  for_each_hole(begin, end, [&](std::uintptr_t from, std::uintptr_t to) { bytes += length(from, to); });
  return bytes;
}

std::int64_t Arena::not_resident_bytes_of(std::uintptr_t address) const {
  const std::uintptr_t page = pages_->page_bytes();
  return absent_bytes(round_down(address, page), round_up(blocks_.at(address).end, page));
}

bool Arena::commit(std::uintptr_t address) {
  const std::uintptr_t begin = round_down(address, pages_->page_bytes());
  const std::uintptr_t end = round_up(blocks_.at(address).end, pages_->page_bytes());
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> holes;
  for_each_hole(begin, end, [&](std::uintptr_t from, std::uintptr_t to) { holes.emplace_back(from, to); });
  for (const auto& [from, to] : holes) {
    if (!pages_->commit(from, to)) return false;
    const auto it = std::prev(absent_.upper_bound(from));
    const auto [hole_begin, hole_end] = *it;
    absent_.erase(it);
    if (hole_begin < from) absent_[hole_begin] = from;
    if (to < hole_end) absent_[to] = hole_end;
    resident_bytes_ += length(from, to);
  }
  return true;
}

std::int64_t Arena::release(std::int64_t bytes) {
  std::int64_t released = 0;
  for (auto it = blocks_.rbegin(); it != blocks_.rend() && released < bytes; ++it) {
    if (!it->second.is_free) continue;
    const std::uintptr_t page = pages_->page_bytes();
    released += release_from(round_up(it->first, page), round_down(it->second.end, page), bytes - released);
  }
  resident_bytes_ -= released;
  return released;
}

/// As above, for one range of whole pages.
std::int64_t Arena::release_from(std::uintptr_t begin, std::uintptr_t end, std::int64_t bytes) {
  std::int64_t released = 0;
  while (end > begin && released < bytes) {
    // The highest resident run [from, end).
    const auto after = absent_.lower_bound(end);
    std::uintptr_t from = begin;
    if (after != absent_.begin()) {
      const auto [hole_begin, hole_end] = *std::prev(after);
      if (hole_end >= end) {
        end = hole_begin;
        continue;
      }
      from = std::max(from, hole_end);
    }
    const std::uintptr_t most = round_up(static_cast<std::uintptr_t>(bytes - released), pages_->page_bytes());
    from = std::max(from, end - std::min(end - from, most));
    wait_for_last_uses(from, end);
    if (!pages_->release(from, end)) break;
    released += length(from, end);
    std::uintptr_t hole_end = end;
    if (const auto next = absent_.find(end); next != absent_.end()) {
      hole_end = next->second;
      absent_.erase(next);
    }
    absent_[from] = hole_end;
    end = from;
  }
  return released;
}

}  // namespace mica::detail
