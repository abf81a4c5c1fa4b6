// SPDX-License-Identifier: Apache-2.0
// A checkpoint that an earlier version of Mica wrote goes on as that version would have.

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;

/// The formats that have a stored sample: tests/reference/make_checkpoint_sample.sh makes it.
std::vector<std::string> samples() {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(reference_path(""))) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint_format_")) found.push_back(name);
  }
  std::ranges::sort(found);
  return found;
}

class OldFormats : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::string sample() { return reference_path(GetParam()); }
};

TEST_P(OldFormats, AreResumedOnAnyRanks) {
  constexpr std::int64_t kSaved = 5;
  const std::vector<StepLine> all = step_lines(sample());
  ASSERT_EQ(all.size(), 10U);
  const std::vector<StepLine> expected(all.begin() + kSaved, all.end());
  for (const int num_ranks : {2, 1, 4}) {
    SCOPED_TRACE(num_ranks);
    const TemporaryFolder folder;
    fs::create_directories(folder / "run");
    fs::copy(sample() + "/checkpoints", folder / "run/checkpoints", fs::copy_options::recursive);
    const std::vector<std::string> flags{"--data.train=" + sample() + "/tokens.bin", "--run.dir=" + (folder / "run"),
                                         "--train.micro_batch=" + std::to_string(num_ranks == 4 ? 1 : 2)};
    const Finished run = test::run(training(num_ranks, sample() + "/run.cfg", flags));
    ASSERT_EQ(run.status, 0) << run.output;
    const std::vector<StepLine> found = step_lines(folder / "run");
    ASSERT_EQ(found.size(), expected.size()) << run.output;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].step, expected[i].step);
      // Another processor's kernels differ in the last bits; without the optimizer's state the loss is 0.04 larger.
      EXPECT_NEAR(found[i].loss, expected[i].loss, 1e-5) << "step " << found[i].step;
      EXPECT_NEAR(found[i].grad_norm, expected[i].grad_norm, 1e-5) << "step " << found[i].step;
      EXPECT_DOUBLE_EQ(found[i].lr, expected[i].lr) << "step " << found[i].step;
    }
  }
}

TEST_P(OldFormats, AreVerifiedAndConverted) {
  const std::string checkpoint = sample() + "/checkpoints/step-00000005";
  const Finished verified = test::run({program("mica-inspect"), "verify", checkpoint});
  EXPECT_EQ(verified.status, 0) << verified.output;
  const TemporaryFolder folder;
  const Finished cut = test::run({program("mica-convert"), "reshard", checkpoint, folder / "cut", "--ranks=3"});
  ASSERT_EQ(cut.status, 0) << cut.output;
  const Finished diff = test::run({program("mica-inspect"), "diff", checkpoint, folder / "cut"});
  EXPECT_EQ(diff.status, 0) << diff.output;
}

INSTANTIATE_TEST_SUITE_P(Samples, OldFormats, ::testing::ValuesIn(samples()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace mica::test
