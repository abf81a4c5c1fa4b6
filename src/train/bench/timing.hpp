// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: clocks and medians, over ranks.

#include <chrono>
#include <functional>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train::bench {

/// Seconds since an arbitrary point.
[[nodiscard]] inline double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// @param values  at least one
[[nodiscard]] double median(std::vector<double> values);

/// The slowest rank's value. @collective
[[nodiscard]] double slowest(const mpi::Communicator& world, double seconds);

/// Seconds that `work` takes the slowest rank, all starting together. @collective
[[nodiscard]] double timed_together(const mpi::Communicator& world, const std::function<void()>& work);

/// Median seconds of one call on the slowest rank, all ranks calling at once, at least 3 times and for about `seconds`. @collective
[[nodiscard]] double median_call(const mpi::Communicator& world, double seconds, const std::function<void()>& work);

/// Bytes of a field of /proc/self/status, e.g. "VmHWM".
[[nodiscard]] std::int64_t process_bytes(const char* field);

/// Whether it is so on every rank. @collective
[[nodiscard]] inline bool on_every_rank(const mpi::Communicator& world, bool mine) { return world.all_max(mine ? 0 : 1) == 0; }

/// Every rank's number, in rank order. @collective
[[nodiscard]] std::vector<std::int64_t> gather_numbers(const mpi::Communicator& world, std::int64_t mine);

}  // namespace mica::train::bench
