// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "mica/device/pool.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica {

/// One member's progress with an array that a group shares. It is in the shared memory, on a cache line of its own; only that
/// member writes it.
struct alignas(64) PartProgress {
  std::atomic<std::uint64_t> written{0};   ///< rounds whose values its part holds or has held; or its turns ([Note: turns])
  std::atomic<std::uint64_t> released{0};  ///< rounds that it no longer reads
};
static_assert(sizeof(PartProgress) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

/// One array in memory that all members of a group share, with a part for each member. [Note: memory side by side]
/// A member writes only its own part (but for writing in turns, below) and reads the whole, in rounds numbered from 1, equally on all
/// members:
///   publish(n)            sets written = n, after all writes to its own part
///   wait_for_written(n)   until every member's written >= n, before the round's first read
///   release(n)            sets released = n, after the round's last read
///   wait_for_released(n)  until every other member's released >= n, before the next write to its own part
/// Each of them is a task of a stream. The first two replace an all-gather. The caller must order its streams so that these tasks
/// run in the order of the list, and may write its own part only after wait_for_released of the last round.
/// No member reads a part while it is written. Say A writes its part between its rounds n and n + 1, and B reads it in a round k.
/// - k <= n: before it wrote, A had seen B's released >= n >= k. B stores that after its reads; the store is a release, A's
///   load an acquire: the reads are over.
/// - k > n: before it read, B had seen A's written >= k > n. A stores that in its publish of round k or later, so after the
///   write; again the store is a release, the load an acquire: the write is over.
/// Nor is there a deadlock: the hosts of all ranks enqueue these tasks in the same order, and there what a wait of round n waits for
/// comes before it (publish(n) before any wait_for_written(n), release(n) before any wait_for_released(n)).
struct SharedParts {
  Buffer memory;                         ///< this member's part, counted by a pool; keeps the whole shared memory mapped on this rank
  TensorView own;                        ///< [P]
  TensorView whole = {};                 ///< [S*P], the members' parts in rank order; absent if nothing is shared
  std::span<PartProgress> members = {};  ///< by rank; empty if nothing is shared
  int rank = 0;                          ///< this member

  [[nodiscard]] bool is_shared() const { return !members.empty(); }
  /// (The two waits are members of ProcessGroup, which records them.)
  void publish(Stream& s, std::uint64_t round) const;
  void release(Stream& s, std::uint64_t round) const;
  /// After an abandoned step, when this rank's streams are drained: counts all rounds up to `round` as published and released, even
  /// those that a failed stream has skipped.
  void settle(std::uint64_t round) const;
};

/// One turn of a member in writing to the whole array, where members do so one after another ([Note: writing in turns]). [Note: turns]
/// The array is cut into as many ranges as there are members. In the t-th turn of a visit, member r writes range (r + t) mod S, so
/// member q has written range s of that visit in its turn (s - q) mod S. `written` counts a member's turns: it is number() when
/// the turn is over, and base + kTurnsOfACall when the whole call is. A turn waits for those members that write its
/// range before it: in this visit, if they come earlier in the range's order, or in the visit before. Whatever a turn waits for
/// comes before it in the order of (call, visit, turn), so there is no deadlock.
struct PartTurn {
  static constexpr std::uint64_t kTurnsOfACall = std::uint64_t{1} << 20;

  std::uint64_t base;  ///< the end of the call before, the same on all members; calls are kTurnsOfACall apart
  int visit, turn;
  int rank, num_ranks;

  [[nodiscard]] int range() const { return (rank + turn) % num_ranks; }
  /// The number of this turn.
  [[nodiscard]] std::uint64_t number() const { return number_of(visit, turn); }
  /// What `member` must have written before this turn.
  [[nodiscard]] std::uint64_t awaited_from(int member) const;

 private:
  [[nodiscard]] std::uint64_t number_of(int of_visit, int of_turn) const {
    return base + static_cast<std::uint64_t>(of_visit) * static_cast<std::uint64_t>(num_ranks) + static_cast<std::uint64_t>(of_turn) + 1;
  }
};

/// Blocks until it is this turn. @param while_waiting  as below
void wait_until_turn(std::span<const PartProgress> members, const PartTurn& turn, const std::function<void()>& while_waiting);

/// Blocks until all members have written (until all but `rank` have released) the round.
/// @param while_waiting  called repeatedly, after a short spin; its exception ends the wait, unless the round has been reached by
///                       then.
void wait_until_written(std::span<const PartProgress> members, std::uint64_t round, const std::function<void()>& while_waiting);
void wait_until_released(std::span<const PartProgress> members, int rank, std::uint64_t round, const std::function<void()>& while_waiting);

/// The layout of the shared memory: a PartProgress for each member, and from the next page on the parts.
struct PartsShape {
  int rank;
  int num_ranks;
  std::int64_t numel;  ///< of one part
  DType dtype;
  /// Offset of the r-th part in bytes; r = num_ranks: the end of all parts.
  [[nodiscard]] std::int64_t begin_of(int r) const;
};

/// Page tables of a process that maps so many bytes of shared memory. Every member maps all parts, so on a node of many ranks these are
/// a good part of the memory itself: a quarter for 128.
[[nodiscard]] std::int64_t page_table_bytes(std::int64_t mapped_bytes);

/// This rank's view of `memory`, which all members have mapped and none has used yet. The pool counts its own part.
/// @param memory  shape.begin_of(num_ranks) bytes, all zero, page-aligned.
[[nodiscard]] SharedParts share_parts(std::shared_ptr<std::byte> memory, const PartsShape& shape, Pool& pool, MemoryRole role,
                                      Stream& home);

}  // namespace mica
