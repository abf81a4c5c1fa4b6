// SPDX-License-Identifier: Apache-2.0
// Set-up data that ranks wait for no longer than they were told to.
#include <array>
#include <chrono>

#include <gtest/gtest.h>

#include "mica/comm/host_comm.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

namespace mica {
namespace {

using std::chrono::milliseconds;

class BroadcastWithin : public ::testing::Test {
 protected:
  std::unique_ptr<Pool> pool = make_cpu_pool();
  /// Ranks in reverse: a group's rank is not the job's.
  std::unique_ptr<ProcessGroup> group = make_mpi_group(mpi::Communicator::world(), *pool, "world")->split(0, -rank_of_job(), "reverse");

  static int rank_of_job() {
    int rank = 0;
    mpi::check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }
  /// What broadcast_within() throws. Checks that it takes about as long as it may.
  std::string error_of(int root, milliseconds timeout) {
    std::array<std::byte, 16> data{};
    const auto begin = std::chrono::steady_clock::now();
    try {
      broadcast_within(*group, data, root, timeout);
    } catch (const MpiError& e) {
      EXPECT_GE(std::chrono::steady_clock::now() - begin, timeout - milliseconds(50));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, timeout + std::chrono::seconds(60)) << "what hangs does so for ever";
      return e.what();
    }
    return {};
  }
};

TEST_F(BroadcastWithin, TheRootsBytesReachEveryRank) {
  for (int root = 0; root < group->num_ranks(); ++root) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{128}, std::size_t{100'000}}) {
      std::vector<std::byte> data(size, static_cast<std::byte>(group->rank() == root ? 7 + root : 0));
      broadcast_within(*group, data, root, std::chrono::seconds(30));
      EXPECT_EQ(data, std::vector<std::byte>(size, static_cast<std::byte>(7 + root)));
    }
  }
  EXPECT_EQ(group->counts().calls, CollectiveCounts{}.calls) << "set-up is not counted";
}

TEST_F(BroadcastWithin, F5_EveryRankThatCameIsToldWhoDidNot_OnSeveralRanks) {
  const int ranks = group->num_ranks();
  // The last ranks of the group, the first ones of the job, stay away.
  const int num_missing = ranks == 4 ? 2 : 1;
  const auto stream = make_cpu_stream("test", StreamMode::inlined);
  if (group->rank() < ranks - num_missing) {
    EXPECT_EQ(error_of(0, milliseconds(1000)),
              num_missing == 1 ? "rank 0 of the job did not connect within 1 s" : "ranks 0, 1 of the job did not connect within 1 s");
  }
  group->barrier(*stream, "after");
}

TEST_F(BroadcastWithin, F5_ARootThatDoesNotComeIsNamed) {
  const int ranks = group->num_ranks();
  const auto stream = make_cpu_stream("test", StreamMode::inlined);
  if (group->rank() != 0) {
    EXPECT_EQ(error_of(0, milliseconds(300)), fmt::format("rank {} of the job did not connect within 0.3 s", ranks - 1));
  }
  group->barrier(*stream, "after");
}

}  // namespace
}  // namespace mica
