// SPDX-License-Identifier: Apache-2.0
// The memory limit of a cgroup, as Slurm's --mem sets it, is kept. Registered where such a cgroup can be made.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// The error of a training of 2 ranks that may take 4 GiB. A rank needs less, two need more.
std::string refusal(const std::vector<std::string>& flags) {
  const TemporaryFolder folder;
  write_tokens(folder / "tokens.bin", 4000);
  write_text(folder / "run.cfg", "[model]\nlayers = 1\nheads = 2\nwidth = 4096\ncontext = 32\n[data]\ntrain = " + (folder / "tokens.bin") +
                                     "\n[optim]\ntype = sgd\n"
                                     "[train]\nsteps = 2\nmicro_batch = 2\nseq_len = 16\n[run]\ndir = " +
                                     (folder / "run") + "\n");
  std::vector<std::string> command{test::source_folder() + "/tests/fault/support/memory_cgroup.sh", "4294967296"};
  for (const std::string& word : training(2, folder / "run.cfg", flags)) command.push_back(word);
  const Finished seen = test::run(command);
  EXPECT_EQ(seen.status, 2) << seen.output;
  const std::vector<std::string> lines = seen.error_lines();
  EXPECT_EQ(lines.size(), 1u) << seen.output;
  return lines.empty() ? "" : lines[0];
}

TEST(MemoryCgroup, ARunThatDoesNotFitItsLimitIsRefused) {
  const std::string error = refusal({"--fsdp.strategy=no_shard"});
  EXPECT_THAT(error, AllOf(HasSubstr("2.26 GiB of memory per rank"), HasSubstr("for 2 ranks"), HasSubstr("mica_test_"),
                           HasSubstr("4.00 GiB"), HasSubstr("--mem")));
  EXPECT_THAT(error, AnyOf(HasSubstr("memory.limit_in_bytes of the cgroup"), HasSubstr("memory.max of the cgroup")));
}

// It advised what was set already.
TEST(MemoryCgroup, TheRefusalNamesKeysThatWouldHelp) {
  EXPECT_THAT(refusal({"--fsdp.strategy=no_shard", "--fsdp.activation_checkpointing=block"}),
              AllOf(HasSubstr("or train.seq_len, or fsdp.strategy=full_shard"), Not(HasSubstr("checkpointing"))));
}

// Its pools alone would fit.
TEST(MemoryCgroup, WhatIsOffloadedCounts) { EXPECT_THAT(refusal({"--fsdp.cpu_offload=parameters"}), HasSubstr("GiB of memory per rank")); }

}  // namespace
}  // namespace mica::test
