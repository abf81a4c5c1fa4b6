// SPDX-License-Identifier: Apache-2.0
// A first exchange that takes long where the launcher passes on no addresses.
#include "mica/launch/first_exchange.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "mica/core/host.hpp"

// As under srun, whose PMIx has no name server.
extern "C" int MPI_Publish_name(const char* /*service*/, MPI_Info /*info*/, const char* /*port*/) { return MPI_ERR_SERVICE; }

namespace mica::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// TCP has no route to an address for multicast: to Mica, a host at which something refuses connections.
TEST(FirstExchange, ALateRankIsNoErrorWhereAHostOfTheStepRefuses) {
  const mpi::Communicator world = mpi::Communicator::world();
  if (world.num_ranks() == 1) return;
  ::setenv("SLURM_STEP_NODELIST", (host_name() + ",224.0.0.1").c_str(), 1);
  world.barrier();
  ::testing::internal::CaptureStderr();
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5000));
  EXPECT_TRUE(first_exchange());
  const std::string told = ::testing::internal::GetCapturedStderr();
  ::unsetenv("SLURM_STEP_NODELIST");
  if (world.rank() == 0) {
    EXPECT_THAT(told,
                AllOf(HasSubstr("mica: warning: the first exchange of the ranks takes long; "),
                      HasSubstr(" cannot reach 224.0.0.1 at 224.0.0.1 from "), HasSubstr("if the run does not go on, open the network")));
  }
}

}  // namespace
}  // namespace mica::launch
