// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/shared_parts.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <thread>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

namespace mica {
namespace {

constexpr std::int64_t kPageBytes = 4096, kPageEntryBytes = 8;

/// A wait first spins, then yields the core, then sleeps longer and longer.
constexpr int kSpins = 1000;
constexpr int kYields = 100;
constexpr std::chrono::microseconds kShortestSleep{10}, kLongestSleep{100};

template <class HasCome>
void wait_until(const HasCome& has_come, const std::function<void()>& while_waiting) {
  std::chrono::microseconds sleep = kShortestSleep;
  std::exception_ptr gone;  // a peer may have stored just before it left: check once more
  for (int tries = 0; !has_come(); ++tries) {
    if (gone) std::rethrow_exception(gone);
    if (tries < kSpins) continue;
    try {
      while_waiting();
    } catch (...) {
      gone = std::current_exception();
      continue;
    }
    if (tries < kSpins + kYields) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
}

}  // namespace

void wait_until_written(std::span<const PartProgress> members, std::uint64_t round, const std::function<void()>& while_waiting) {
  for (const PartProgress& member : members) {
    wait_until([&] { return member.written.load(std::memory_order_acquire) >= round; }, while_waiting);
  }
}

std::uint64_t PartTurn::awaited_from(int member) const {
  const int its_turn = (range() - member + num_ranks) % num_ranks;
  if (its_turn < turn) return number_of(visit, its_turn);
  return visit == 0 ? base : number_of(visit - 1, its_turn);
}

void wait_until_turn(std::span<const PartProgress> members, const PartTurn& turn, const std::function<void()>& while_waiting) {
  for (int q = 0; q < turn.num_ranks; ++q) {
    if (q == turn.rank) continue;
    const PartProgress& member = members[static_cast<std::size_t>(q)];
    const std::uint64_t awaited = turn.awaited_from(q);
    wait_until([&] { return member.written.load(std::memory_order_acquire) >= awaited; }, while_waiting);
  }
}

void wait_until_released(std::span<const PartProgress> members, int rank, std::uint64_t round, const std::function<void()>& while_waiting) {
  for (const PartProgress& member : members) {
    if (&member == &members[static_cast<std::size_t>(rank)]) continue;  // this rank's own reads are ordered by its streams
    wait_until([&] { return member.released.load(std::memory_order_acquire) >= round; }, while_waiting);
  }
}

void SharedParts::publish(Stream& s, std::uint64_t round) const {
  s.submit("publish", {reads(own)},
           [&mine = members[static_cast<std::size_t>(rank)], round] { mine.written.store(round, std::memory_order_release); });
}

void SharedParts::release(Stream& s, std::uint64_t round) const {
  s.submit("release", {},
           [&mine = members[static_cast<std::size_t>(rank)], round] { mine.released.store(round, std::memory_order_release); });
}

void SharedParts::settle(std::uint64_t round) const {
  PartProgress& mine = members[static_cast<std::size_t>(rank)];
  mine.written.store(round, std::memory_order_release);
  mine.released.store(round, std::memory_order_release);
}

std::int64_t PartsShape::begin_of(int r) const {
  const std::int64_t header = round_up(num_ranks * static_cast<std::int64_t>(sizeof(PartProgress)), kPageBytes);
  return header + r * numel * dtype_bytes(dtype);
}

std::int64_t page_table_bytes(std::int64_t mapped_bytes) { return divide_up(mapped_bytes, ::sysconf(_SC_PAGESIZE)) * kPageEntryBytes; }

SharedParts share_parts(std::shared_ptr<std::byte> memory, const PartsShape& shape, Pool& pool, MemoryRole role, Stream& home) {
  invariant(shape.numel > 0 && shape.num_ranks > 1, "something to share, and somebody to share it with");
  auto* const progress = reinterpret_cast<PartProgress*>(memory.get());
  new (progress + shape.rank) PartProgress;
  SharedParts parts;
  parts.own = {memory.get() + shape.begin_of(shape.rank), Shape{shape.numel}, shape.dtype};
  parts.whole = {memory.get() + shape.begin_of(0), Shape{shape.numel * shape.num_ranks}, shape.dtype};
  parts.members = {progress, static_cast<std::size_t>(shape.num_ranks)};
  parts.rank = shape.rank;
  parts.memory = pool.adopt(parts.own.data, parts.own.bytes(), role, home, std::move(memory));
  return parts;
}

}  // namespace mica
