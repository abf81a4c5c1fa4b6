// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

struct HeadDims {
  std::int64_t rows, vocab, width;
};
constexpr HeadDims kHeadDims[] = {{1, 1, 1}, {3, 7, 5}, {17, 33, 3}, {65, 129, 33}, {7, 1000, 17}, {3, 4101, 3}, {2, 33001, 2}};

/// 4 KiB of logits: the larger cases take several chunks, the last one short, and a vocabulary of 1000 leaves 1 row.
class HeadLoss : public KernelsTest {
 protected:
  HeadLoss() : KernelsTest({.logits_bytes = 4096}) {}

  /// Every fifth row ignored.
  static HostTensor targets(std::int64_t rows, std::int64_t vocab) {
    HostTensor t = HostTensor::random_ids({rows}, vocab, 3);
    for (std::int64_t i = 2; i < rows; i += 5) t.set(i, -1);
    return t;
  }
  /// Rounding of a number up to 1 into a dtype; f32's is in the other terms.
  static double half_ulp(DType dtype) { return dtype == DType::f32 ? 0 : rounding(dtype) / 2; }
  /// A logit errs by a sum of `width` products; log-sum-exp and p - 1 by as much, and by the sum over the vocabulary.
  static double row_error(const HeadDims& d) { return 4 * (sum_error(d.width) + static_cast<double>(d.vocab + 16) * 0x1p-24); }
};

TEST_P(HeadLoss, IsTheOracles) {
  for (const HeadDims& d : kHeadDims) {
    HostTensor hidden = random({d.rows, d.width}, 1), w = random({d.vocab, d.width}, 2), ids = targets(d.rows, d.vocab);
    Pair loss({1}, DType::f32);
    const double scale = 1.0 / static_cast<double>(d.rows);
    both([&](Kernels& kernels, bool r) { kernels.head_loss(*stream_, hidden, w, ids, scale, loss.of(r)); });
    EXPECT_TRUE(loss.near(row_error(d))) << d.rows << " rows, vocab " << d.vocab;
  }
}

TEST_P(HeadLoss, BackwardIsTheOracles) {
  for (const HeadDims& d : kHeadDims) {
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
      HostTensor hidden = random({d.rows, d.width}, 1), w = random({d.vocab, d.width}, 2), ids = targets(d.rows, d.vocab);
      HostTensor dloss = HostTensor::of(DType::f32, {0.75});
      Pair loss({1}, DType::f32), dhidden({d.rows, d.width}, dtype()), dw({d.vocab, d.width}, gradient);
      Pair dw_added(HostTensor::random({d.vocab, d.width}, gradient, 5)), dhidden_alone({d.rows, d.width}, dtype());
      both([&](Kernels& kernels, bool r) {
        kernels.head_loss_backward(*stream_, hidden, w, ids, 1.5, dloss, loss.of(r), dhidden.of(r), dw.of(r), Write::overwrite);
        kernels.head_loss_backward(*stream_, hidden, w, ids, 1.5, dloss, {}, {}, dw_added.of(r), Write::accumulate);
        kernels.head_loss_backward(*stream_, hidden, w, ids, 1.5, dloss, {}, dhidden_alone.of(r), {}, Write::overwrite);
      });
      // A dlogit (at most 1.125) errs by row_error and, unless f32, by its rounding; dhidden sums the vocabulary's: those
      // of one row add up to 2 * 1.125 at most. dw sums rows, and is itself rounded once a chunk.
      const double dlogit = 1.125 * (row_error(d) + half_ulp(dtype()));
      const double chunks = std::ceil(static_cast<double>(d.rows * (d.vocab + 15)) * 4 / 4096) + 1;
      const double dw_roundings = chunks * half_ulp(gradient) * (1 + 1.125 * static_cast<double>(d.rows));
      const double dw_error = static_cast<double>(d.rows) * dlogit + sum_error(d.rows + 1) + dw_roundings;
      const std::string what = fmt::format("{} rows, vocab {}, dw {}", d.rows, d.vocab, dtype_name(gradient));
      EXPECT_TRUE(loss.near(1.5 * static_cast<double>(d.rows) * row_error(d))) << what;
      EXPECT_TRUE(dhidden.near(2 * dlogit + sum_error(d.vocab, 1.125 / static_cast<double>(d.vocab)) + 0x1p-20)) << what;
      EXPECT_TRUE(dw.near(dw_error)) << what;
      EXPECT_TRUE(dw_added.near(dw_error)) << what;
      EXPECT_TRUE(dhidden_alone.tested.same_bits(dhidden.tested)) << what;
    }
  }
}

TEST_P(HeadLoss, IgnoredRowsGiveNothing) {
  HostTensor hidden = random({3, 5}, 1), w = random({7, 5}, 2), ids = HostTensor::of(DType::i32, {-1, -1, -1});
  HostTensor loss({1}, DType::f32), dhidden = fresh({3, 5}), dw({7, 5}, DType::f32), dloss = HostTensor::of(DType::f32, {1});
  tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, dhidden, dw, Write::overwrite);
  stream_->synchronize();
  EXPECT_EQ(loss.at(0), 0);
  for (std::int64_t i = 0; i < dhidden.numel(); ++i) ASSERT_EQ(dhidden.at(i), 0);
  for (std::int64_t i = 0; i < dw.numel(); ++i) ASSERT_EQ(dw.at(i), 0);
}

/// Logits of thousands: exp() of them as they are would overflow.
TEST_P(HeadLoss, StaysFiniteForLargeLogits) {
  HostTensor hidden = random({9, 16}, 1, -50, 50), w = random({40, 16}, 2, -50, 50), ids = targets(9, 40);
  HostTensor dloss = HostTensor::of(DType::f32, {1});
  Pair loss({1}, DType::f32), dhidden({9, 16}, dtype());
  both([&](Kernels& kernels, bool r) {
    kernels.head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss.of(r), dhidden.of(r), {}, Write::overwrite);
  });
  EXPECT_TRUE(loss.near(9 * sum_error(16, 50, 50)));
  for (std::int64_t i = 0; i < dhidden.tested.numel(); ++i) ASSERT_TRUE(std::isfinite(dhidden.tested.at(i)));
}

TEST_P(HeadLoss, NoRowsLoseNothing) {
  HostTensor hidden = random({0, 5}, 1), w = random({7, 5}, 2), ids({0}, DType::i32), loss({1}, DType::f32);
  HostTensor dw({7, 5}, DType::f32), dloss = HostTensor::of(DType::f32, {1});
  tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, {}, dw, Write::overwrite);
  stream_->synchronize();
  EXPECT_EQ(loss.at(0), 0);
  for (std::int64_t i = 0; i < dw.numel(); ++i) ASSERT_EQ(dw.at(i), 0);
}

/// The logits of all rows would be 65 * 144 * 4 bytes: the scratch shows that they never exist together.
TEST_P(HeadLoss, HoldsOneChunkOfLogits) {
  HostTensor hidden = random({65, 3}, 1), w = random({129, 3}, 2), ids = targets(65, 129), loss({1}, DType::f32);
  pool_->reset_peak();
  tested_->head_loss(*stream_, hidden, w, ids, 1, loss);
  stream_->synchronize();
  const std::int64_t peak = pool_->stats().peak_of(MemoryRole::workspace);
  EXPECT_GE(peak, 7 * 144 * 4);
  EXPECT_LT(peak, 65 * 144 * 4) << "more than a chunk of logits, its rows' losses and the library's scratch";
}

TEST_P(HeadLoss, RecordsTheProductsOfEveryChunk) {
  HostTensor hidden = random({17, 5}, 1), w = random({100, 5}, 2), ids = targets(17, 100), loss({1}, DType::f32);
  HostTensor dhidden = fresh({17, 5}), dw({100, 5}, DType::f32), dloss = HostTensor::of(DType::f32, {1});
  std::vector<ProductShape> list;
  tested_->record_products(&list);
  tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, dhidden, dw, Write::overwrite);
  stream_->synchronize();
  std::int64_t logits = 0, dhiddens = 0, dws = 0;  // rows
  for (const ProductShape& p : list) {
    if (p.transposed_b)
      logits += p.m;
    else if (p.transposed_a)
      dws += p.k;
    else
      dhiddens += p.m;
  }
  EXPECT_EQ(list.size(), 6U) << "4096 bytes hold 9 rows of 112: chunks of 9 and 8 rows";
  EXPECT_EQ(logits, 17);
  EXPECT_EQ(dhiddens, 17);
  EXPECT_EQ(dws, 17);
}

INSTANTIATE_TEST_SUITE_P(Lanes, HeadLoss, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
