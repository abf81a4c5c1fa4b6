// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/sampling.hpp"

#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::generate {
namespace {

/// Logits of these probabilities.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

/// How often each token is chosen over fractions that cover (0, 1) evenly, in percent.
std::map<std::int32_t, double> shares(const std::vector<float>& logits, const SamplingOptions& options,
                                      const std::vector<std::int32_t>& before = {}) {
  constexpr int kDraws = 2000;
  std::map<std::int32_t, double> all;
  for (int i = 0; i < kDraws; ++i) all[choose_token(logits, before, options, (i + 0.5) / kDraws)] += 100.0 / kDraws;
  return all;
}

void expect_shares(const std::map<std::int32_t, double>& got, const std::map<std::int32_t, double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, share] : want) {
    ASSERT_TRUE(got.contains(id)) << id;
    EXPECT_NEAR(got.at(id), share, 0.11) << id;
  }
}

TEST(Sampling, TemperatureZeroTakesTheLikeliestAndTheFirstOfEquals) {
  EXPECT_EQ(choose_token(std::vector<float>{1, 3, 2, 3}, {}, {}, 0.99), 1);
  EXPECT_EQ(likeliest(std::vector<float>{-5}), 0);
  EXPECT_EQ(likeliest(std::vector<float>{-INFINITY, -7, -INFINITY}), 1);
}

TEST(Sampling, TemperatureOneDrawsWhatTheModelSays) {
  expect_shares(shares(logits_of({0.5, 0.2, 0.3}), {.temperature = 1}), {{0, 50}, {1, 20}, {2, 30}});
}

/// p^(1/T): with T = 1/2 of 0.5, 0.2, 0.3: 25 : 4 : 9.
TEST(Sampling, ATemperatureSharpens) {
  expect_shares(shares(logits_of({0.5, 0.2, 0.3}), {.temperature = 0.5}), {{0, 2500.0 / 38}, {1, 400.0 / 38}, {2, 900.0 / 38}});
}

TEST(Sampling, TopKKeepsTheLikeliestAndItsEquals) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.3, 0.2});
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2}), {{1, 400.0 / 7}, {2, 300.0 / 7}});
  expect_shares(shares(logits, {.temperature = 1, .top_k = 1}), {{1, 100}});
  expect_shares(shares(logits, {.temperature = 1, .top_k = 9}), {{0, 10}, {1, 40}, {2, 30}, {3, 20}});
  const std::vector<float> equal{1, 2, 1, 1};
  EXPECT_EQ(shares(equal, {.temperature = 1, .top_k = 2}).size(), 4U);
}

/// Of 0.4, 0.3, 0.2, 0.1: the first reaches 0.4, the first two 0.7.
TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.3, 0.2});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.39}), {{1, 100}});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.41}), {{1, 400.0 / 7}, {2, 300.0 / 7}});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.75}), {{1, 400.0 / 9}, {2, 300.0 / 9}, {3, 200.0 / 9}});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 1e-9}), {{1, 100}});
  // Of the two that top_k leaves, the first has 4/7.
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.5}), {{1, 100}});
}

/// Above 0 a logit is divided, below it is multiplied, once however often the token came.
TEST(Sampling, APenaltyMakesWhatCameBeforeLessLikely) {
  const std::vector<float> logits{2, 1.5, -1, -1.5};
  const SamplingOptions options{.repetition_penalty = 2};
  EXPECT_EQ(choose_token(logits, {}, options, 0.5), 0);
  EXPECT_EQ(choose_token(logits, std::vector<std::int32_t>{0, 0, 0}, options, 0.5), 1);                   // 1, 1.5, -1, -1.5
  EXPECT_EQ(choose_token(logits, std::vector<std::int32_t>{0, 1}, options, 0.5), 0);                      // 1, 0.75
  EXPECT_EQ(choose_token(std::vector<float>{-1, -1.5F}, std::vector<std::int32_t>{0}, options, 0.5), 1);  // -2, -1.5
  const std::map<std::int32_t, double> drawn = shares({2, 0}, {.temperature = 1, .repetition_penalty = 2}, {0});
  EXPECT_NEAR(drawn.at(0), 100 * std::exp(1) / (std::exp(1) + 1), 0.11);
}

TEST(Sampling, AFractionDependsOnSeedSequenceAndPositionOnly) {
  const DrawPoint point{.seed = 7, .sequence = 3, .position = 11};
  EXPECT_EQ(random_fraction(point), random_fraction(point));
  double sum = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double fraction = random_fraction({.seed = 7, .sequence = 3, .position = i});
    EXPECT_GT(fraction, 0);
    EXPECT_LT(fraction, 1);
    sum += fraction;
  }
  EXPECT_NEAR(sum / 1000, 0.5, 0.05);
  EXPECT_NE(random_fraction(point), random_fraction({.seed = 8, .sequence = 3, .position = 11}));
  EXPECT_NE(random_fraction(point), random_fraction({.seed = 7, .sequence = 4, .position = 11}));
  EXPECT_NE(random_fraction(point), random_fraction({.seed = 7, .sequence = 3, .position = 12}));
}

TEST(Sampling, NaNIsAnErrorWhereverItStands) {
  for (const std::vector<float>& logits : {std::vector<float>{NAN, 1}, {1, NAN}, {1, NAN, 2}}) EXPECT_THROW((void)likeliest(logits), Error);
}

TEST(Sampling, ImpossibleOptionsAreRefused) {
  EXPECT_NO_THROW(SamplingOptions().validate());
  EXPECT_THROW(SamplingOptions{.temperature = -1}.validate(), ConfigError);
  EXPECT_THROW(SamplingOptions{.temperature = NAN}.validate(), ConfigError);
  EXPECT_THROW(SamplingOptions{.top_k = -1}.validate(), ConfigError);
  EXPECT_THROW(SamplingOptions{.top_p = 0}.validate(), ConfigError);
  EXPECT_THROW(SamplingOptions{.top_p = 1.1}.validate(), ConfigError);
  EXPECT_THROW(SamplingOptions{.repetition_penalty = 0}.validate(), ConfigError);
}

}  // namespace
}  // namespace mica::generate
