// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/lr_schedule.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::optim {
namespace {

std::vector<double> rates(const LrScheduleOptions& options, std::int64_t last) {
  const LrSchedule schedule(options);
  std::vector<double> found;
  for (std::int64_t step = 1; step <= last; ++step) found.push_back(schedule.at(step));
  return found;
}

void expect_rates(const LrScheduleOptions& options, const std::vector<double>& expected) {
  const std::vector<double> found = rates(options, static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << "step " << i + 1;
}

TEST(LrSchedule, CosineWarmsUpToLrAndEndsAtMinLr) {
  // 0.2 + 0.8 * (1 + cos(pi * x)) / 2 at x = 1/4, 1/2, 3/4, 1; cos(pi / 4) = 0.70710678118654752.
  expect_rates({.shape = LrShape::cosine, .lr = 1, .min_lr = 0.2, .warmup_steps = 2, .total_steps = 6},
               {0.5, 1, 0.882842712474619, 0.6, 0.317157287525381, 0.2, 0.2, 0.2});
}

TEST(LrSchedule, LinearFallsEvenly) {
  expect_rates({.shape = LrShape::linear, .lr = 1, .min_lr = 0, .warmup_steps = 1, .total_steps = 5}, {1, 0.75, 0.5, 0.25, 0, 0});
  expect_rates({.shape = LrShape::linear, .lr = 1, .min_lr = 0.2, .warmup_steps = 1, .total_steps = 5}, {1, 0.8, 0.6, 0.4, 0.2, 0.2});
}

TEST(LrSchedule, ConstantStays) {
  expect_rates({.shape = LrShape::constant, .lr = 3, .min_lr = 1, .warmup_steps = 3, .total_steps = 5}, {1, 2, 3, 3, 3, 3});
}

TEST(LrSchedule, WithoutWarmupTheFirstStepHasLeftLrAlready) {
  expect_rates({.shape = LrShape::linear, .lr = 4, .min_lr = 0, .warmup_steps = 0, .total_steps = 4}, {3, 2, 1, 0});
  expect_rates({.shape = LrShape::cosine, .lr = 4, .min_lr = 1, .warmup_steps = 0, .total_steps = 1}, {1});
}

TEST(LrSchedule, ARunThatEndsWithinTheWarmupIsAWarmup) {
  expect_rates({.shape = LrShape::cosine, .lr = 10, .min_lr = 0, .warmup_steps = 10, .total_steps = 3}, {1, 2, 3});
  // T = W: the last step has lr, then it is over.
  expect_rates({.shape = LrShape::cosine, .lr = 2, .min_lr = 1, .warmup_steps = 2, .total_steps = 2}, {1, 2, 1});
}

TEST(LrSchedule, NamesAreThoseOfTheConfig) {
  for (const LrShape shape : {LrShape::cosine, LrShape::linear, LrShape::constant}) {
    EXPECT_EQ(lr_shape_from_name(lr_shape_name(shape)), shape);
  }
  EXPECT_EQ(lr_shape_name(LrShape::cosine), "cosine");
  EXPECT_THROW(static_cast<void>(lr_shape_from_name("cosin")), ConfigError);
}

std::string refusal(const LrScheduleOptions& options) {
  try {
    const LrSchedule schedule(options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(LrSchedule, RefusesWhatIsNoSchedule) {
  using ::testing::HasSubstr;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal({.lr = -1}), HasSubstr("optim.lr is -1"));
  EXPECT_THAT(refusal({.lr = nan}), HasSubstr("optim.lr is nan"));
  EXPECT_THAT(refusal({.lr = INFINITY}), HasSubstr("optim.lr is inf"));
  EXPECT_THAT(refusal({.lr = 1, .min_lr = 2}), HasSubstr("optim.min_lr is 2"));
  EXPECT_THAT(refusal({.lr = 1, .min_lr = nan}), HasSubstr("optim.min_lr"));
  EXPECT_THAT(refusal({.lr = 1, .warmup_steps = -1}), HasSubstr("optim.warmup_steps is -1"));
  EXPECT_THAT(refusal({.lr = 1, .total_steps = 0}), HasSubstr("train.steps is 0"));
  EXPECT_EQ(refusal({.lr = 0}), "");
  EXPECT_THROW(static_cast<void>(LrSchedule({.lr = 1}).at(0)), Error);
}

}  // namespace
}  // namespace mica::optim
