// SPDX-License-Identifier: Apache-2.0
#include "block_workers.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace mica::checkpoint {
namespace {

/// In Linux, the calling thread's.
int niceness() { return ::getpriority(PRIO_PROCESS, 0); }

TEST(BlockWorkers, ThoseInTheBackgroundGiveWayAndNoOtherThread) {
  const int own = niceness();
  const auto niceness_of_workers = [](WorkerPriority priority) {
    int seen = 0;
    run_block_workers(1, 1, [&](int, std::int64_t) { seen = niceness(); }, {.priority = priority, .is_awaited = nullptr});
    return seen;
  };
  EXPECT_GE(niceness_of_workers(WorkerPriority::background), 15);
  EXPECT_EQ(niceness_of_workers(WorkerPriority::normal), own);
  EXPECT_EQ(niceness(), own);
}

}  // namespace
}  // namespace mica::checkpoint
