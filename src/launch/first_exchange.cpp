// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/first_exchange.hpp"

#include <array>
#include <chrono>
#include <thread>

#include <mpi.h>

#include "peer_search.hpp"
#include "program_identity.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// Start of the search. A normal launch is seldom this slow, and the search does no harm.
constexpr std::chrono::milliseconds kQuiet{1500};
/// Earliest time at which the search may fail the launch.
constexpr std::chrono::milliseconds kVerdict{3500};

bool is_done_by(MPI_Request& request, Clock::time_point deadline) {
  for (int polls = 0;; ++polls) {
    int done = 0;
    mpi::check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0 || Clock::now() >= deadline) return done != 0;
    std::this_thread::sleep_for(std::chrono::microseconds(polls < 100 ? 10 : 500));
  }
}

/// Returns when the request is done; throws if an unreachable host is the reason that it is not.
void search_while_waiting(MPI_Request& request, Clock::time_point begin) {
  PeerSearch search;
  bool has_told = false;
  while (!is_done_by(request, Clock::now() + std::chrono::milliseconds(100))) {
    search.look();
    if (Clock::now() < begin + kVerdict) continue;
    search.throw_if_unreachable();
    if (search.is_in_doubt()) continue;
    if (!std::exchange(has_told, true)) search.tell_state();
  }
}

}  // namespace

bool first_exchange() {
  const std::uint64_t hash = program_hash();
  // The minimum of the hashes and, as the minimum of their complements, the maximum.
  const std::array<std::uint64_t, 2> mine{hash, ~hash};
  std::array<std::uint64_t, 2> least{};
  MPI_Request request = MPI_REQUEST_NULL;
  const Clock::time_point begin = Clock::now();
  mpi::check(MPI_Iallreduce(mine.data(), least.data(), 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD, &request), "MPI_Iallreduce");
  if (!is_done_by(request, begin + kQuiet)) search_while_waiting(request, begin);
  return least[0] == ~least[1];  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): the request is done, by MPI_Test
}

}  // namespace mica::launch
