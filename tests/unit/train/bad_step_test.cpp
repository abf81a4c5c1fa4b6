// SPDX-License-Identifier: Apache-2.0
// Which steps are bad.

#include "mica/train/bad_step.hpp"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::train {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(BadStepJudge, LossesBeforeNormsBeforeSpikes) {
  const BadStepJudge judge(0);
  EXPECT_EQ(judge.judge({1, 2}, 3), BadStep::none);
  EXPECT_EQ(judge.judge({1, kNan}, 3), BadStep::loss_not_finite);
  EXPECT_EQ(judge.judge({-kInf}, kNan), BadStep::loss_not_finite);
  EXPECT_EQ(judge.judge({1}, kNan), BadStep::grad_norm_not_finite);
  EXPECT_EQ(judge.judge({1}, kInf), BadStep::grad_norm_not_finite);
  EXPECT_EQ(judge.judge({}, 1e30), BadStep::none) << "without a factor nothing is a spike";
}

TEST(BadStepJudge, ASpikeIsMeasuredByTheGoodStepsBefore) {
  BadStepJudge judge(2);
  for (int i = 1; i < BadStepJudge::kFirstSteps; ++i) judge.count_good(1);
  EXPECT_EQ(judge.judge({1}, 1000), BadStep::none) << "too early to say";
  judge.count_good(11);  // mean (9 * 1 + 11) / 10 = 2
  EXPECT_EQ(judge.judge({1}, 4), BadStep::none);
  EXPECT_EQ(judge.judge({1}, 4.01), BadStep::grad_norm_spike);
  EXPECT_THAT(judge.describe(BadStep::grad_norm_spike, 5), HasSubstr("the gradient norm is 5, 2.5 times its running mean 2"));
}

// From then on the latest step counts one 50th.
TEST(BadStepJudge, TheMeanForgets) {
  BadStepJudge judge(2);
  for (int i = 0; i < 1000; ++i) judge.count_good(1);
  judge.count_good(51);
  EXPECT_EQ(judge.scalars().at("grad_norm_mean"), 2);
}

TEST(BadStepJudge, GoesOnFromACheckpoint) {
  BadStepJudge judge(2);
  for (int i = 0; i < 30; ++i) judge.count_good(0.1 * i);
  BadStepJudge other(2);
  other.count_good(77);
  other.restore(judge.scalars());
  EXPECT_EQ(other.scalars(), judge.scalars());
  other.restore({});
  EXPECT_EQ(other.judge({1}, 1e9), BadStep::none) << "a checkpoint without a mean begins a new one";
  EXPECT_TRUE(BadStepJudge(0).scalars().empty());
}

}  // namespace
}  // namespace mica::train
