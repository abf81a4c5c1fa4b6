// SPDX-License-Identifier: Apache-2.0
#include "mica/mpi/communicator.hpp"

#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/mpi_test.hpp"

namespace mica::mpi {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Session, YieldsWhenIdleAndGrantsThreads) {
  ASSERT_NE(std::getenv("OMPI_MCA_mpi_yield_when_idle"), nullptr);
  EXPECT_TRUE(mica::testing::session().has_thread_multiple());
  EXPECT_THAT(Session::library_version(), ::testing::AnyOf(::testing::StartsWith("Open MPI v"), ::testing::StartsWith("MPICH Version: ")));
  EXPECT_THROW(Session(nullptr, nullptr), MpiError) << "one per process";
}

TEST(Check, FiresWithTextCallAndPlace) {
  const auto world = Communicator::world();
  int x = 0;
  try {
    check(MPI_Bcast(&x, 1, MPI_INT, world.num_ranks() + 5, world.get()), "MPI_Bcast");
    FAIL() << "a wrong root is an error";
  } catch (const MpiError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("MPI_Bcast failed:"), HasSubstr("root"), HasSubstr("communicator_test.cpp:")));
  }
  // Also on world, self, and on what is made of them.
  EXPECT_NE(MPI_Bcast(&x, 1, MPI_INT, 12345, MPI_COMM_WORLD), MPI_SUCCESS);
  EXPECT_NE(MPI_Bcast(&x, 1, MPI_INT, 12345, MPI_COMM_SELF), MPI_SUCCESS);
  EXPECT_NE(MPI_Bcast(&x, 1, MPI_INT, 12345, world.split(0, 0).get()), MPI_SUCCESS);
  EXPECT_NE(MPI_Bcast(&x, 1, MPI_INT, 12345, world.split_node().get()), MPI_SUCCESS);
}

TEST(Communicator, MovesLeaveNothingBehind) {
  auto a = Communicator::world();
  const MPI_Comm handle = a.get();
  Communicator b = std::move(a);
  EXPECT_EQ(b.get(), handle);
  EXPECT_EQ(a.get(), MPI_COMM_NULL);  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  a = std::move(b);
  EXPECT_EQ(a.get(), handle);
  a.barrier();
  EXPECT_THROW(Communicator(MPI_COMM_NULL), MpiError);
}

TEST(Communicator, GathersAndBroadcastsStrings) {
  const auto world = Communicator::world();
  // Rank 0's is empty, the others' are of different lengths, with a zero byte inside.
  const auto text_of = [](int rank) { return std::string(static_cast<std::size_t>(rank) * 7, static_cast<char>(rank)); };
  const auto all = world.gather_strings(text_of(world.rank()));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.num_ranks()));
  for (int r = 0; r < world.num_ranks(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text_of(r));
  const int last = world.num_ranks() - 1;
  EXPECT_EQ(world.broadcast_string(world.rank() == last ? "from the last" : "ignored", last), "from the last");
  EXPECT_EQ(world.broadcast_string("", 0), "");
  EXPECT_THROW((void)world.broadcast_string("", world.num_ranks()), MpiError);
}

TEST(Communicator, SplitsAndReduces) {
  const auto world = Communicator::world();
  const auto reversed = world.split(0, -world.rank());
  EXPECT_EQ(reversed.rank(), world.num_ranks() - 1 - world.rank());
  const auto alone = world.split(world.rank(), 0);
  EXPECT_EQ(alone.num_ranks(), 1);
  EXPECT_EQ(world.split_node().num_ranks(), world.num_ranks());
  EXPECT_EQ(world.duplicate().rank(), world.rank());
  EXPECT_EQ(world.all_max(std::int64_t{10'000'000'000} + world.rank()), std::int64_t{10'000'000'000} + world.num_ranks() - 1);
  EXPECT_EQ(world.all_sum(world.rank() + 1), world.num_ranks() * (world.num_ranks() + 1) / 2);
  EXPECT_THROW((void)world.split(-1, 0), MpiError);
}

TEST(Communicator, KnowsItsMembersRanksInTheWorld) {
  const auto world = Communicator::world();
  std::vector<int> ascending(static_cast<std::size_t>(world.num_ranks()));
  std::iota(ascending.begin(), ascending.end(), 0);
  const std::vector<int> descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(world.world_ranks(), ascending);
  EXPECT_EQ(world.split_node().world_ranks(), ascending);
  const auto reversed = world.split(0, -world.rank());
  EXPECT_EQ(reversed.world_ranks(), descending);
  EXPECT_EQ(reversed.duplicate().world_ranks(), descending);
  const auto alone = reversed.split(reversed.rank(), 0);
  EXPECT_EQ(alone.world_ranks(), std::vector<int>{world.rank()});
  EXPECT_EQ(alone.ranks_in(reversed), std::vector<int>{reversed.rank()});
  EXPECT_EQ(reversed.ranks_in(world), descending);
  EXPECT_EQ(world.ranks_in(reversed), descending);
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(reversed.get(), &copy), "MPI_Comm_dup");
  EXPECT_EQ(Communicator(copy).world_ranks(), descending);
}

}  // namespace
}  // namespace mica::mpi
