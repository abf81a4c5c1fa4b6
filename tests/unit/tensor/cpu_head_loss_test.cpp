// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/tensor/kernels.hpp"

#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

/// Rows of each product of a head with 16 classes. 16 KiB of logits: at most 256 rows.
std::vector<std::int64_t> chunks_of(std::int64_t rows) {
  const auto pool = make_cpu_pool();
  const auto stream = make_cpu_stream("test", StreamMode::inlined);
  const auto kernels = make_cpu_kernels(*pool, {.logits_bytes = 1 << 14});
  std::vector<float> hidden(static_cast<std::size_t>(rows * 3)), w(16 * 3), loss(1);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  std::vector<ProductShape> products;
  kernels->record_products(&products);
  kernels->head_loss(*stream, {hidden.data(), {rows, 3}, DType::f32}, {w.data(), {16, 3}, DType::f32}, {targets.data(), {rows}, DType::i32},
                     1, {loss.data(), {1}, DType::f32});
  std::vector<std::int64_t> found;
  for (const ProductShape& product : products) found.push_back(product.m);
  return found;
}

// Each chunk reads the whole weight, so there should be few, and none that is much shorter than the others.
TEST(CpuHeadLoss, ChunksAreFewAndAlike) {
  EXPECT_THAT(chunks_of(256), ::testing::ElementsAre(256));
  EXPECT_THAT(chunks_of(257), ::testing::ElementsAre(160, 97));
  EXPECT_THAT(chunks_of(320), ::testing::ElementsAre(160, 160));
  EXPECT_THAT(chunks_of(1025), ::testing::ElementsAre(224, 224, 224, 224, 129));
  EXPECT_THAT(chunks_of(16 * 512), ::testing::AllOf(::testing::SizeIs(16), ::testing::Each(512))) << "no more than 16";
}

class LargeHead : public KernelsTest {};

// oneDNN would keep all sums of the weight gradient, 17 MB in f32, once for each thread.
TEST_P(LargeHead, TheGradientTakesLittleMemory) {
  const std::int64_t rows = 3, vocab = 4201, width = 1010;
  HostTensor hidden = random({rows, width}, 1), w = random({vocab, width}, 2, -0.1, 0.1), ids = HostTensor::random_ids({rows}, vocab, 3);
  HostTensor dloss = HostTensor::of(DType::f32, {1});
  Pair dw(HostTensor::random({vocab, width}, dtype(), 5, -0.01, 0.01));
  pool_->reset_peak();
  both([&](Kernels& kernels, bool r) {
    kernels.head_loss_backward(*stream_, hidden, w, ids, 1, dloss, {}, {}, dw.of(r), Write::accumulate);
  });
  EXPECT_TRUE(dw.near_as_a_whole(0.005));
  EXPECT_LT(pool_->stats().peak, 16 << 20);
}

class LongHead : public KernelsTest {
 protected:
  LongHead() : KernelsTest({.logits_bytes = 4096}) {}
};

// 4 KiB hold the logits of 64 rows, so there were 256 chunks; and a dw that is rounded to bf16 after each ends more than 2 % away.
TEST_P(LongHead, TheGradientIsRoundedAFewTimes) {
  constexpr std::int64_t kRows = 16384, kVocab = 16, kWidth = 8;
  HostTensor hidden = random({kRows, kWidth}, 1, 0, 1), w = random({kVocab, kWidth}, 2);
  HostTensor ids = HostTensor::random_ids({kRows}, kVocab / 2, 3);  // the other classes' sums only grow
  HostTensor loss({1}, DType::f32), dloss = HostTensor::of(DType::f32, {1});
  HostTensor exact({kVocab, kWidth}, DType::f32), dw({kVocab, kWidth}, DType::bf16);
  for (HostTensor* each : {&exact, &dw}) {
    tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, {}, *each, Write::overwrite);
  }
  stream_->synchronize();
  for (std::int64_t i = kVocab / 2 * kWidth; i < exact.numel(); ++i) EXPECT_NEAR(dw.at(i) / exact.at(i), 1, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Lanes, LongHead, ::testing::Values(Lane{StreamMode::inlined, 1, DType::bf16}), lane_name);
INSTANTIATE_TEST_SUITE_P(Lanes, LargeHead,
                         ::testing::Values(Lane{StreamMode::inlined, 1, DType::bf16},
                                           Lane{StreamMode::threaded, kManyThreads, DType::bf16}),
                         lane_name);

}  // namespace
}  // namespace mica::testing
