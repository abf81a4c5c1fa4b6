// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

#include "mica/core/rounding.hpp"

namespace mica::cpu {

/// Threads that parallel_ranges uses for n: only so many need scratch of their own.
[[nodiscard]] inline int threads_for(std::int64_t n, std::int64_t grain) {
  return static_cast<int>(std::clamp<std::int64_t>(divide_up(n, grain), 1, omp_get_max_threads()));
}

/// body(begin, end, thread) on disjoint ranges that cover [0, n): one range per thread, borders at multiples of `grain`.
/// With one thread, or at most one grain of work, the body is called directly. It must not throw.
/// The split depends on n, grain and the thread count only.
template <class Body>
void parallel_ranges_by_thread(std::int64_t n, std::int64_t grain, Body&& body) {
  const std::int64_t grains = divide_up(n, grain);
  const int threads = static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), grains));
  if (n <= 0) return;
  if (threads <= 1) {
    body(std::int64_t{0}, n, 0);
    return;
  }
  // A team of all threads, even if some have nothing to do: gcc's runtime ends the threads that a smaller team leaves out, and the next
  // larger one creates them again.
#pragma omp parallel
  for (int thread = omp_get_thread_num(); thread < threads; thread += omp_get_num_threads()) {
    const std::int64_t begin = grains * thread / threads * grain;
    const std::int64_t end = std::min(n, grains * (thread + 1) / threads * grain);
    if (begin < end) body(begin, end, thread);
  }
}

/// The same for a body(begin, end).
template <class Body>
void parallel_ranges(std::int64_t n, std::int64_t grain, Body&& body) {
  parallel_ranges_by_thread(n, grain, [&body](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

/// Elements a thread should get at least: below that, waking another thread costs more than it saves.
inline constexpr std::int64_t kElementGrain = 16384;
/// Rows of `cols` elements that make up kElementGrain.
[[nodiscard]] constexpr std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, kElementGrain / std::max<std::int64_t>(1, cols));
}

}  // namespace mica::cpu
