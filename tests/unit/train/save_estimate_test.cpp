// SPDX-License-Identifier: Apache-2.0
#include "../../../src/train/save_estimate.hpp"

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

TEST(SaveEstimate, GrowsWithTheShard) {
  const test::TemporaryFolder folder;
  const auto comm = make_single_comm();
  EXPECT_LT(estimate_save(*comm, folder.path(), 0), estimate_save(*comm, folder.path(), 1 << 20));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// A limit on the size of files ends the process in the middle of the write.
TEST(SaveEstimate, AKilledJobLeavesNoFile) {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    (void)estimate_save(*make_single_comm(), folder.path(), 1 << 20);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace mica::train
