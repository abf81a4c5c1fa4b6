// SPDX-License-Identifier: Apache-2.0
#include "mica/data/tensor_dataset.hpp"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/data/batch.hpp"

#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Sample i has the pixels 10 i, 10 i + 1, ... and the class i.
TensorDataset counted(std::int64_t samples, const Shape& shape = {2, 3}) {
  std::vector<float> pixels;
  for (std::int64_t i = 0; i < samples; ++i) {
    for (std::int64_t p = 0; p < shape.numel(); ++p) pixels.push_back(static_cast<float>(10 * i + p));
  }
  std::vector<std::int64_t> classes(static_cast<std::size_t>(samples));
  std::iota(classes.begin(), classes.end(), 0);
  return TensorDataset({{"pixels", shape, pixels}, {"class", {}, classes}});
}

std::vector<std::int32_t> classes_of(Batch& batch) {
  const TensorView view = batch.tensors.at(1).view();
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + view.numel()};
}

TEST(TensorDataset, SamplesAreReadIntoBatches) {
  const TensorDataset dataset = counted(5);
  EXPECT_EQ(dataset.num_samples(), 5);
  ASSERT_EQ(dataset.tensors().size(), 2U);
  EXPECT_EQ(dataset.tensors()[0].dtype, DType::f32);
  EXPECT_EQ(dataset.tensors()[1].dtype, DType::i32) << "i64 classes are kept as models take them";
  EXPECT_EQ(dataset.tensors()[1].bytes(), 4);

  Batch batch;
  read_batch(dataset, std::vector<SampledSequence>{{7, 1, 2}, {8, 1, 4}, {9, 1, 0}}, batch);
  ASSERT_EQ(batch.tensors.size(), 2U);
  EXPECT_EQ(batch.tensors[0].view().shape, (Shape{3, 2, 3}));
  EXPECT_EQ(batch.tensors[1].view().shape, (Shape{3}));
  const auto* pixels = batch.tensors[0].view().as<float>();
  EXPECT_EQ(std::vector<float>(pixels, pixels + 18),
            (std::vector<float>{20, 21, 22, 23, 24, 25, 40, 41, 42, 43, 44, 45, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(classes_of(batch), (std::vector<std::int32_t>{2, 4, 0}));
  EXPECT_EQ(batch.global_ids, (std::vector<std::int64_t>{7, 8, 9}));
}

TEST(TensorDataset, KeepsF32TargetsAndI32Inputs) {
  const TensorDataset dataset({{"id", {1}, std::vector<std::int32_t>{4, 5}}, {"price", {1}, std::vector<float>{0.5F, -2}}});
  Batch batch;
  read_batch(dataset, std::vector<SampledSequence>{{0, 0, 1}}, batch);
  EXPECT_EQ(*batch.tensors[0].view().as<std::int32_t>(), 5);
  EXPECT_EQ(*batch.tensors[1].view().as<float>(), -2);
}

/// The steps of a run have the same samples in the same order on any number of ranks, and go on where they were.
TEST(TensorDataset, StepsHaveTheSameSamplesOnAnyRanksAndAfterAResume) {
  const TensorDataset dataset = counted(11);
  const Sampler sampler(dataset.num_samples(), DataOrder::shuffled, 5);
  constexpr std::int64_t kGlobalBatch = 4;
  const auto classes_of_step = [&](BatchPlan plan, std::int64_t step) {
    std::vector<std::int32_t> classes;
    Batch batch;
    for (std::int64_t round = 0; round < plan.accumulation; ++round) {
      for (std::int64_t rank = 0; rank < plan.num_ranks; ++rank) {
        read_batch(dataset, sampler.micro_batch(plan, step, rank, round), batch);
        const std::vector<std::int32_t> part = classes_of(batch);
        classes.insert(classes.end(), part.begin(), part.end());
      }
    }
    return classes;
  };
  std::vector<std::int32_t> seen;
  for (std::int64_t step = 1; step <= 11; ++step) {
    const std::vector<std::int32_t> alone = classes_of_step(make_batch_plan(4, 1, kGlobalBatch), step);
    EXPECT_EQ(classes_of_step(make_batch_plan(1, 2, kGlobalBatch), step), alone) << step;
    EXPECT_EQ(classes_of_step(make_batch_plan(1, 4, kGlobalBatch), step), alone) << step;
    BatchPlan resumed = make_batch_plan(2, 1, kGlobalBatch);
    resumed.first_step = 3;
    resumed.sequences_before = 2 * kGlobalBatch;
    if (step >= resumed.first_step) {
      EXPECT_EQ(classes_of_step(resumed, step), alone) << step;
    }
    seen.insert(seen.end(), alone.begin(), alone.end());
  }
  // 44 samples are four epochs of 11, each with every sample once and in an order of its own.
  std::vector<std::int32_t> all(11);
  std::iota(all.begin(), all.end(), 0);
  for (auto epoch = seen.begin(); epoch != seen.end(); epoch += 11) {
    EXPECT_THAT(std::vector(epoch, epoch + 11), ::testing::UnorderedElementsAreArray(all));
    EXPECT_NE(std::vector(epoch, epoch + 11), all);
  }
  EXPECT_FALSE(std::equal(seen.begin(), seen.begin() + 11, seen.begin() + 11));
}

TEST(TensorDataset, FingerprintTellsDataApart) {
  const auto of = [](std::vector<float> x, std::vector<std::int32_t> y) {
    return TensorDataset({{"x", {2}, std::move(x)}, {"y", {}, std::move(y)}}).fingerprint();
  };
  const std::string one = of({1, 2, 3, 4}, {0, 1});
  EXPECT_THAT(one, AllOf(HasSubstr("2 samples of x fp32 [2], y int32 []"), HasSubstr("crc32c ")));
  EXPECT_EQ(of({1, 2, 3, 4}, {0, 1}), one);
  EXPECT_NE(of({1, 2, 3, 5}, {0, 1}), one);
  EXPECT_NE(of({1, 2, 3, 4}, {1, 0}), one);
}

TEST(TensorDataset, WhatDoesNotFitIsNamed) {
  const auto refusal = [](const std::vector<SampleArray>& arrays) {
    return error_of<ConfigError>([&] { static_cast<void>(TensorDataset(arrays)); });
  };
  const std::vector<float> six(6, 1);
  EXPECT_THAT(refusal({}), HasSubstr("no arrays are given"));
  EXPECT_THAT(refusal({{"x", {4}, six}}), HasSubstr("'x' has 6 values, which is no whole number of samples of shape [4] (4 values each)"));
  EXPECT_THAT(refusal({{"x", {3}, six}, {"y", {}, six}}), HasSubstr("'x' has 2 samples and 'y' has 6, expected as many of each"));
  EXPECT_THAT(refusal({{"x", {3}, std::vector<float>()}}), HasSubstr("'x' has no samples"));
  EXPECT_THAT(refusal({{"x", {0}, six}}), HasSubstr("'x' has shape [0] a sample"));
  EXPECT_THAT(refusal({{"x", {1, 1, 1, 1, 6}, six}}), HasSubstr("at most 4 dims"));
  EXPECT_THAT(refusal({{"y", {}, std::vector<std::int64_t>{1, std::int64_t{1} << 31}}}),
              HasSubstr("value 2147483648 of 'y', number 1, does not fit in 32 bits"));
  EXPECT_THAT(refusal({{"y", {}, std::vector<std::int64_t>{-(std::int64_t{1} << 31) - 1}}}), HasSubstr("does not fit in 32 bits"));
}

}  // namespace
}  // namespace mica::data
