// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace mica::testing {

/// The MPI calls that are counted, through MPI's profiling interface: from outside of Mica.
enum class MpiCall {
  allgather,
  allgatherv,
  alltoall,
  alltoallv,
  alltoallw,
  bcast,
  barrier,
  isend,
  irecv,
  allreduce,
  split,
  translate_ranks
};
inline constexpr std::size_t kNumMpiCalls = 12;

struct MpiCallCounts {
  std::array<std::int64_t, kNumMpiCalls> calls{};
  [[nodiscard]] std::int64_t of(MpiCall call) const { return calls[static_cast<std::size_t>(call)]; }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t n : calls) sum += n;
    return sum;
  }
  friend MpiCallCounts operator-(MpiCallCounts a, const MpiCallCounts& b) {
    for (std::size_t i = 0; i < kNumMpiCalls; ++i) a.calls[i] -= b.calls[i];
    return a;
  }
};

/// Since the program began, on this rank, by all threads. Take the difference of two.
/// Link the test with the CMake target mpi_test_counter. For what a collective becomes see [Note: MPI calls of collectives].
[[nodiscard]] MpiCallCounts mpi_calls();

/// The most bytes that one call moved on this rank (in one direction, over all ranks) since the last question.
[[nodiscard]] std::int64_t take_largest_mpi_call();

/// A message to or from one other rank: an isend or irecv of this rank, and where its bytes lie.
struct MpiMessage {
  MpiCall call;
  const void* data;
  std::int64_t bytes;
  int peer;  ///< in the communicator of the call
  friend bool operator==(const MpiMessage&, const MpiMessage&) = default;
};
/// Those that `work` posts, in order.
[[nodiscard]] std::vector<MpiMessage> messages_of(const std::function<void()>& work);

/// The next call of this kind on this rank moves nothing and returns MPI_ERR_OTHER.
void fail_next(MpiCall call);

/// The next MPI_Isend on this rank meets all ranks of the world before it (their receives are posted) and after it (a message
/// that is too long for its receive has failed by then).
void meet_around_next_isend();

}  // namespace mica::testing
