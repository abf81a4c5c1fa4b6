// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/host_comm.hpp"

#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"

#include "support/pmpi_counter.hpp"
#include "support/temporary_folder.hpp"

namespace mica {
namespace {

using testing::MpiCall;

TEST(MpiComm, AgreeingCostsOneSmallReduction) {
  const auto world = mpi::Communicator::world();
  const auto comm = make_mpi_comm(world);
  const testing::MpiCallCounts before = testing::mpi_calls();
  comm->agree([] {});
  const testing::MpiCallCounts made = testing::mpi_calls() - before;
  EXPECT_EQ(made.of(MpiCall::allreduce), 1);
  EXPECT_EQ(made.total(), 1);
}

TEST(MpiComm, EveryRankThrowsTheLastRanksError) {
  const auto world = mpi::Communicator::world();
  const auto comm = make_mpi_comm(world);
  const int last = world.num_ranks() - 1;
  const std::string text = test::error_of<DamagedCheckpointError>(
      [&] { comm->agree([&] { require<DamagedCheckpointError>(world.rank() != last, "a bit is wrong"); }); });
  EXPECT_EQ(text, last == 0 ? "a bit is wrong" : fmt::format("rank {}: a bit is wrong", last));
}

}  // namespace
}  // namespace mica
