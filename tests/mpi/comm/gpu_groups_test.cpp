// SPDX-License-Identifier: Apache-2.0
// NCCL's groups over MPI as far as processes get with emulated GPUs, whose NCCL connects threads only: how a rank that
// is not there becomes one message.
#include "mica/comm/gpu_groups.hpp"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"
#include "mica/device/gpu.hpp"

#include "cuda_emulation/cuda_emulation.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclOverMpi, ARankThatIsNotThereIsNamedWithinTheTimeout) {
  use_gpu(0);
  const auto pool = make_cpu_pool();
  const auto cpu = make_cpu_stream("test", StreamMode::inlined);
  const auto host = make_mpi_group(mpi::Communicator::world(), *pool, "world");
  const auto group = make_nccl_group(host->duplicate("shard"), {.timeout = std::chrono::milliseconds(1000)});
  const int absent = group->num_ranks() - 1;
  if (group->rank() != absent) {
    const auto begin = std::chrono::steady_clock::now();
    std::string error;
    try {
      connect_groups({group.get()});
    } catch (const NcclError& e) {
      error = e.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << "what hangs does so for ever";
    EXPECT_THAT(error,
                AllOf(HasSubstr(fmt::format("group 'shard' (rank {} of {}): no NCCL communicator", group->rank(), group->num_ranks())),
                      HasSubstr(fmt::format("rank {} of the job did not connect within 1 s", absent))));
    EXPECT_EQ(cuda_emulation::calls("ncclCommInitRankConfig"), 0);
  }
  host->barrier(*cpu, "after");
}

}  // namespace
}  // namespace mica
