// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mica/core/rounding.hpp"
#include "mica/tensor/kernels.hpp"

#include "tiles.hpp"

namespace mica::cpu {

/// How attention is shared among threads: each takes its range of all heads' tiles of kPanel queries, in order, such that all have about
/// as much to do. A tile sees the keys up to its own, so the work of a head's first n tiles grows with n * n. A range may begin and end
/// inside of a head: with a few heads and many threads, several threads work on one.
/// The ranges depend on the shape and the number of threads only.
class AttentionShares {
 public:
  /// @param max_threads  fewer take part where there are fewer tiles
  AttentionShares(const AttentionShape& shape, int max_threads)
      : seq_len_(shape.seq_len),
        group_(shape.group()),
        num_heads_(shape.batch * shape.heads),
        tiles_(divide_up(shape.seq_len, kPanel)),
        num_threads_(static_cast<int>(std::min<std::int64_t>(max_threads, num_heads_ * tiles_))) {}

  [[nodiscard]] int num_threads() const { return num_threads_; }

  /// The first tile of `thread`, whose last one is before the next thread's first; of num_threads(): the end. Tile t is of head t / tiles,
  /// counted over all sequences.
  [[nodiscard]] std::int64_t first_tile(int thread) const {
    const std::int64_t work_of_head = tiles_ * tiles_, work = num_heads_ * work_of_head * thread / num_threads_;
    const std::int64_t head = work / work_of_head, rest = work % work_of_head;
    auto tile = static_cast<std::int64_t>(std::sqrt(static_cast<double>(rest)));  // or the next, if `rest` is closer to its start
    while ((tile + 1) * (tile + 1) - rest <= rest - tile * tile) ++tile;
    return head * tiles_ + tile;
  }

  /// body(head, first_query, last_query) for each head of the thread's range: queries [first_query, last_query) of it.
  template <class Body>
  void for_each_head(int thread, Body&& body) const {
    const std::int64_t end = first_tile(thread + 1);
    for (std::int64_t tile = first_tile(thread); tile < end;) {
      const std::int64_t first = tile % tiles_, last = std::min(tiles_, first + end - tile);
      body(tile / tiles_, first * kPanel, std::min(seq_len_, last * kPanel));
      tile += last - first;
    }
  }

  /// Whether the thread has nothing to do.
  [[nodiscard]] bool is_empty(int thread) const { return first_tile(thread) == first_tile(thread + 1); }
  /// Whether its first group (heads that share keys and values) is one that a thread before it has begun. False of num_threads().
  [[nodiscard]] bool begins_inside(int thread) const { return first_tile(thread) % tiles_of_group() != 0; }
  /// How many sums of dK and dV the threads before it have. Each has one, and a second one for what comes behind a first group that a
  /// thread before it has begun: the sums of that group are kept until all threads are done.
  [[nodiscard]] int num_sums_before(int thread) const {
    int sums = thread;
    for (int before = 0; before < thread; ++before) sums += has_two_sums(before) ? 1 : 0;
    return sums;
  }

  /// Whether there is a group that several threads have parts of.
  [[nodiscard]] bool are_groups_shared() const {
    for (int thread = 1; thread < num_threads_; ++thread) {
      if (begins_inside(thread)) return true;
    }
    return false;
  }
  /// body(group, first, last) for each of them, counted over all sequences: threads [first, last) have its parts, but those that are empty.
  template <class Body>
  void for_each_shared_group(Body&& body) const {
    for (int first = 0; first < num_threads_; ++first) {
      const std::int64_t group = first_group(first + 1);
      if (!begins_inside(first + 1) || (begins_inside(first) && first_group(first) == group)) continue;
      int last = first + 2;
      while (begins_inside(last) && first_group(last) == group) ++last;
      body(group, first, last);
    }
  }

 private:
  [[nodiscard]] bool has_two_sums(int thread) const {
    return begins_inside(thread) && first_tile(thread + 1) > (first_group(thread) + 1) * tiles_of_group();
  }
  [[nodiscard]] std::int64_t tiles_of_group() const { return group_ * tiles_; }
  [[nodiscard]] std::int64_t first_group(int thread) const { return first_tile(thread) / tiles_of_group(); }

  std::int64_t seq_len_, group_, num_heads_;
  std::int64_t tiles_;  // of a head
  int num_threads_;
};

}  // namespace mica::cpu
