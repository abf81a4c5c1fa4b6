// SPDX-License-Identifier: Apache-2.0
#include "unit/tensor/kernels_testing.hpp"

// What a GPU does with ids that are not in the vocabulary: it cannot refuse them.
namespace mica::testing {
namespace {

class Ids : public KernelsTest {};

TEST_P(Ids, ATokenOutsideTheVocabularyIsNanAndGetsNoGradient) {
  for (const std::int64_t width : {3, 8, 129}) {
    HostTensor ids = HostTensor::of(DType::i32, {0, -1, 4, 5, 2e9, 4}), tokens = random({5, width}, 1), y = fresh({6, width});
    HostTensor dy = HostTensor::of(dtype(), std::vector<double>(static_cast<std::size_t>(6 * width), 1)), dtokens = fresh({5, width});
    tested_->embedding(*stream_, ids, tokens, {}, y);
    tested_->embedding_backward(*stream_, dy.view().reshaped({6, width}), ids, dtokens, Write::overwrite, {}, Write::overwrite);
    stream_->synchronize();
    for (std::int64_t i = 0; i < 6; ++i) {
      const bool is_known = i == 0 || i == 2 || i == 5;
      for (std::int64_t j = 0; j < width; ++j) ASSERT_EQ(std::isnan(y.at(i * width + j)), !is_known) << i << " " << j;
    }
    const double expected[] = {1, 0, 0, 0, 2};
    for (std::int64_t i = 0; i < 5 * width; ++i) ASSERT_EQ(dtokens.at(i), expected[i / width]) << i;
  }
}

TEST_P(Ids, ATargetThatIsNoClassMakesTheLossAndItsRowsGradientNan) {
  HostTensor logits = random({4, 5}, 1), targets = HostTensor::of(DType::i32, {0, -100, 5, 4});
  HostTensor loss({1}, DType::f32), dlogits = fresh({4, 5}), dloss = HostTensor::of(DType::f32, {1});
  tested_->cross_entropy(*stream_, logits, targets, -100, loss);
  tested_->cross_entropy_backward(*stream_, logits, targets, -100, dloss, dlogits);
  stream_->synchronize();
  EXPECT_TRUE(std::isnan(loss.at(0)));
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(dlogits.at(i)), i / 5 == 2) << i;
}

/// Sums of small integers: exact in every dtype, whatever their order. One id has most of the tokens, over many chunks
/// of the sorted rows; ids need one, two and three digits of the sort.
TEST_P(Ids, GradientsOfFrequentAndOfManyTokensAreWhole) {
  for (const std::int64_t vocab : {3, 257, 70000}) {
    constexpr std::int64_t kCount = 2500, kWidth = 5;
    HostTensor ids = HostTensor::random_ids({kCount}, vocab, 1), dy({kCount, kWidth}, dtype()), dtokens({vocab, kWidth}, DType::f32);
    std::vector<double> expected(static_cast<std::size_t>(vocab * kWidth), 0);
    for (std::int64_t i = 0; i < kCount; ++i) {
      if (i % 3 != 0) ids.set(i, static_cast<double>(vocab / 2));
      const auto id = static_cast<std::int64_t>(ids.at(i));
      for (std::int64_t j = 0; j < kWidth; ++j) {
        const auto value = static_cast<double>((i * 7 + j) % 17 - 8);
        dy.set(i * kWidth + j, value);
        expected[static_cast<std::size_t>(id * kWidth + j)] += value;
      }
    }
    HostTensor twice = dtokens;
    tested_->embedding_backward(*stream_, dy, ids, dtokens, Write::overwrite, {}, Write::overwrite);
    tested_->embedding_backward(*stream_, dy, ids, twice, Write::overwrite, {}, Write::overwrite);
    tested_->embedding_backward(*stream_, dy, ids, twice, Write::accumulate, {}, Write::overwrite);
    stream_->synchronize();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ASSERT_EQ(dtokens.at(at), expected[i]) << "vocab " << vocab << ", id " << at / kWidth;
      ASSERT_EQ(twice.at(at), 2 * expected[i]) << "vocab " << vocab << ", id " << at / kWidth;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, Ids, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
