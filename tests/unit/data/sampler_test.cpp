// SPDX-License-Identifier: Apache-2.0
#include "mica/data/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/data/permutation.hpp"

#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::int64_t> values_of(const Permutation& p) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(p.size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = p(static_cast<std::int64_t>(i));
  return values;
}

bool is_bijection(const Permutation& p) {
  std::vector<bool> seen(static_cast<std::size_t>(p.size()), false);
  for (std::int64_t i = 0; i < p.size(); ++i) {
    const std::int64_t value = p(i);
    if (value < 0 || value >= p.size() || seen[static_cast<std::size_t>(value)]) return false;
    seen[static_cast<std::size_t>(value)] = true;
  }
  return true;
}

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (std::int64_t n = 1; n <= 200; ++n) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) EXPECT_TRUE(is_bijection(Permutation(n, 1337, epoch))) << n;
  }
}

TEST(Permutation, IsABijectionForBigSizes) {
  for (const std::int64_t n : {4095, 4096, 4097, 65537}) EXPECT_TRUE(is_bijection(Permutation(n, 7, 1))) << n;
}

TEST(Permutation, StaysInRangeAndDistinctForHugeSizes) {
  const std::int64_t n = (std::int64_t{1} << 61) + 12345;
  const Permutation p(n, 1, 0);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 5000; ++i) {
    for (const std::int64_t value : {p(i), p(n - 1 - i)}) {
      ASSERT_TRUE(value >= 0 && value < n);
      ASSERT_TRUE(seen.insert(value).second);
    }
  }
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) orders.insert(values_of(Permutation(100, seed, epoch)));
  }
  EXPECT_EQ(orders.size(), 25U);
}

/// A permutation of 10,000 over 8 epochs should look random: each tenth of the positions draws evenly from each tenth
/// of the values (chi-square with 81 degrees of freedom: mean 81, standard deviation 12.7), and neighbours are not
/// kept.
TEST(Permutation, LooksRandom) {
  constexpr std::int64_t kN = 10000;
  std::int64_t num_fixed = 0;
  std::int64_t num_neighbours = 0;
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
    const auto values = values_of(Permutation(kN, 1, epoch));
    std::vector<double> counts(100, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      counts[i / 1000 * 10 + static_cast<std::size_t>(values[i]) / 1000] += 1;
      num_fixed += values[i] == static_cast<std::int64_t>(i) ? 1 : 0;
      num_neighbours += i > 0 && values[i] == values[i - 1] + 1 ? 1 : 0;
    }
    double chi2 = 0;
    for (const double c : counts) chi2 += (c - 100) * (c - 100) / 100;
    EXPECT_LT(chi2, 81 + 6 * 12.7) << epoch;
    EXPECT_GT(chi2, 81 - 6 * 12.7) << epoch;
  }
  EXPECT_LT(num_fixed, 25);  // 1 an epoch is expected, so 8
  EXPECT_LT(num_neighbours, 25);
}

/// All orders of three appear about equally often: a small domain is where Feistel networks are weakest.
TEST(Permutation, TinySizesGiveEveryOrder) {
  std::map<std::vector<std::int64_t>, int> counts;
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) ++counts[values_of(Permutation(3, 5, epoch))];
  EXPECT_EQ(counts.size(), 6U);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

/// The order is part of what a checkpoint promises: these literals must never change.
TEST(Permutation, TheOrderIsFrozen) {
  EXPECT_EQ(values_of(Permutation(10, 1337, 0)), (std::vector<std::int64_t>{9, 8, 0, 2, 4, 1, 6, 3, 5, 7}));
  EXPECT_EQ(values_of(Permutation(10, 1337, 1)), (std::vector<std::int64_t>{2, 4, 0, 1, 9, 5, 3, 6, 7, 8}));
  EXPECT_EQ(Permutation(1'000'000'007, 42, 3)(123456789), 573892564);
  // An odd number of bits, of which one half is longer.
  EXPECT_EQ(values_of(Permutation(20, 1337, 0)),
            (std::vector<std::int64_t>{17, 15, 10, 12, 6, 18, 4, 19, 9, 5, 16, 0, 8, 1, 11, 14, 2, 13, 7, 3}));
  EXPECT_EQ(Permutation(5'000'000'000, 42, 3)(123456789), 3371325579);
}

TEST(Sampler, SequentialFollowsTheDocumentedExample) {
  const Sampler sampler(10, DataOrder::sequential, 0);
  const BatchPlan plan{1, 2, 2};
  using Micro = std::vector<SampledSequence>;
  EXPECT_EQ(sampler.micro_batch(plan, 3, 0, 0), (Micro{{8, 0, 8}}));
  EXPECT_EQ(sampler.micro_batch(plan, 3, 1, 0), (Micro{{9, 0, 9}}));
  EXPECT_EQ(sampler.micro_batch(plan, 3, 0, 1), (Micro{{10, 1, 0}}));
  EXPECT_EQ(sampler.micro_batch(plan, 3, 1, 1), (Micro{{11, 1, 1}}));
  const BatchPlan wide{2, 2, 3};  // the example of BatchPlan: rank 1 computes 2 3, then 8 9
  EXPECT_EQ(sampler.micro_batch(wide, 1, 1, 0), (Micro{{2, 0, 2}, {3, 0, 3}}));
  EXPECT_EQ(sampler.micro_batch(wide, 1, 1, 1), (Micro{{8, 0, 8}, {9, 0, 9}}));
}

// After a resume with another batch: 3 steps of 4 sequences were done, and steps of 2 follow with the first unseen one.
TEST(Sampler, GoesOnWhereAnotherBatchEnded) {
  const Sampler sampler(10, DataOrder::sequential, 0);
  BatchPlan plan = make_batch_plan(1, 2, 2);
  plan.first_step = 4;
  plan.sequences_before = 12;
  using Micro = std::vector<SampledSequence>;
  EXPECT_EQ(sampler.micro_batch(plan, 4, 0, 0), (Micro{{12, 1, 2}}));
  EXPECT_EQ(sampler.micro_batch(plan, 5, 1, 0), (Micro{{15, 1, 5}}));
  EXPECT_EQ(plan.sequences_at(6), 16);
}

/// The step's sequences in the order of micro-batches, however they are dealt.
std::vector<SampledSequence> whole_step(const Sampler& sampler, const BatchPlan& plan, std::int64_t step) {
  std::vector<SampledSequence> all;
  for (std::int64_t round = 0; round < plan.accumulation; ++round) {
    for (std::int64_t rank = 0; rank < plan.num_ranks; ++rank) {
      const auto micro = sampler.micro_batch(plan, step, rank, round);
      all.insert(all.end(), micro.begin(), micro.end());
    }
  }
  return all;
}

TEST(Sampler, AStepHasTheSameSequencesOnAnyMesh) {
  for (const DataOrder order : {DataOrder::sequential, DataOrder::shuffled}) {
    const Sampler sampler(37, order, 9);
    int num_plans = 0;
    for (std::int64_t step = 1; step <= 12; ++step) {
      const auto expected = whole_step(sampler, {24, 1, 1}, step);
      ASSERT_EQ(expected.size(), 24U);
      ASSERT_EQ(expected.front().global_id, (step - 1) * 24);
      for (const std::int64_t ranks : {1, 2, 3, 4, 6, 8, 12, 24}) {
        for (const std::int64_t micro_batch : {1, 2, 3, 4, 6, 8, 12}) {
          if (24 % (ranks * micro_batch) != 0) continue;
          ++num_plans;
          ASSERT_EQ(whole_step(sampler, make_batch_plan(micro_batch, ranks, 24), step), expected) << ranks << "x" << micro_batch;
        }
      }
    }
    EXPECT_EQ(num_plans, 12 * 29);
  }
}

TEST(Sampler, EveryEpochHoldsEverySequenceOnce) {
  constexpr std::int64_t kN = 53;
  const Sampler sampler(kN, DataOrder::shuffled, 3);
  std::set<std::vector<std::int64_t>> orders;
  std::vector<std::int64_t> order;
  for (std::int64_t step = 1; step * 8 <= 10 * kN + 7; ++step) {
    for (const SampledSequence& s : whole_step(sampler, {2, 2, 2}, step)) {
      EXPECT_EQ(s.epoch, s.global_id / kN);
      order.push_back(s.sequence);
      if (order.size() < kN) continue;
      orders.insert(order);
      std::sort(order.begin(), order.end());
      std::vector<std::int64_t> all(kN);
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(order, all);
      order.clear();
    }
  }
  EXPECT_EQ(orders.size(), 10U);  // all different
}

TEST(Sampler, OneSequenceAndGlobalBatchesBeyondTheDataset) {
  for (const DataOrder order : {DataOrder::sequential, DataOrder::shuffled}) {
    const Sampler one(1, order, 0);
    EXPECT_EQ(one.at(7), (SampledSequence{7, 7, 0}));
    const Sampler three(3, order, 0);
    const auto step = whole_step(three, {4, 2, 1}, 2);
    EXPECT_EQ(step.back().global_id, 15);
    EXPECT_EQ(step.back().epoch, 5);
  }
}

TEST(Sampler, OrderNames) {
  EXPECT_EQ(data_order_from_name("shuffled"), DataOrder::shuffled);
  EXPECT_EQ(data_order_from_name("sequential"), DataOrder::sequential);
  EXPECT_THAT(error_of<ConfigError>([] { (void)data_order_from_name("random"); }), HasSubstr("shuffled or sequential"));
}

TEST(BatchPlan, DividesOrNamesTheValuesNearIt) {
  EXPECT_EQ(make_batch_plan(8, 4, 0).global_batch(), 32);
  EXPECT_EQ(make_batch_plan(8, 4, 96).accumulation, 3);
  EXPECT_EQ(make_batch_plan(1, 1, 1).accumulation, 1);
  const std::string text = error_of<ConfigError>([] { (void)make_batch_plan(8, 3, 100); });
  EXPECT_THAT(text, AllOf(HasSubstr("train.global_batch=100"), HasSubstr("8 x 3 = 24"), HasSubstr("96 (accumulation 4)"),
                          HasSubstr("120 (accumulation 5)")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("micro_batch=")));  // 100 does not divide by 3 ranks at all
  EXPECT_THAT(error_of<ConfigError>([] { (void)make_batch_plan(8, 4, 16); }),
              AllOf(HasSubstr("near it: 32 (accumulation 1)"), HasSubstr("train.micro_batch=4")));
  EXPECT_THAT(error_of<ConfigError>([] { (void)make_batch_plan(5, 4, 48); }), HasSubstr("train.micro_batch=4 or 6"));
  EXPECT_THAT(error_of<ConfigError>([] { (void)make_batch_plan(2, 4, 12); }),
              HasSubstr("or keep it with train.micro_batch=1 or 3, or on 3 or 6 ranks"));
  EXPECT_THAT(error_of<ConfigError>([] { (void)make_batch_plan(2, 7, 12); }), HasSubstr("or keep it on 6 ranks"));
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 40}) {
    EXPECT_THROW((void)make_batch_plan(bad, 1, 0), ConfigError);
    EXPECT_THROW((void)make_batch_plan(1, bad, 0), ConfigError);
    EXPECT_THROW((void)make_batch_plan(1, 1, bad), ConfigError);
  }
  EXPECT_THROW((void)make_batch_plan(0, 1, 0), ConfigError);
  EXPECT_THROW((void)make_batch_plan(1 << 20, 1 << 20, 0), ConfigError);
}

}  // namespace
}  // namespace mica::data
