// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

// Losses of outputs that are there whole, against the oracle.
namespace mica::testing {
namespace {

class Losses : public KernelsTest {
 protected:
  /// A term errs by a few roundings in f32, if at all: the CPU's and the GPU's are in double.
  static constexpr double kTermError = 16 * 0x1p-24;
};

/// 50000 elements are several blocks and are shared out among threads; 2048 ends with its block.
constexpr std::int64_t kLossNumels[] = {1, 3, 17, 129, 2048, 2049, 50000};
struct LossDims {
  std::int64_t rows, classes;
};
constexpr LossDims kLossDims[] = {{1, 1}, {1, 10}, {3, 7}, {33, 2}, {65, 257}, {2, 5000}, {3000, 11}};
constexpr std::int32_t kIgnored = -100;

TEST_P(Losses, OfElementsAreTheOracles) {
  for (const ElementLoss f : {ElementLoss::squared_error, ElementLoss::binary_cross_entropy}) {
    for (const std::int64_t n : kLossNumels) {
      for (const DType of_targets : {DType::f32, dtype()}) {
        HostTensor x = random({n}, 1, -8, 8), targets = HostTensor::random({n}, of_targets, 2, 0, 1);
        HostTensor dloss = HostTensor::of(DType::f32, {0.75});
        Pair loss({1}, DType::f32), dx({n}, dtype()), in_place(x);
        both([&](Kernels& kernels, bool r) {
          kernels.element_loss(*stream_, f, x, targets, loss.of(r));
          kernels.element_loss_backward(*stream_, f, x, targets, dloss, dx.of(r));
          kernels.element_loss_backward(*stream_, f, in_place.of(r), targets, dloss, in_place.of(r));
        });
        const std::string what = fmt::format("loss {} of {} elements, targets {}", static_cast<int>(f), n, dtype_name(of_targets));
        EXPECT_TRUE(loss.near(kTermError)) << what;
        EXPECT_TRUE(dx.near(kTermError)) << what;
        EXPECT_TRUE(in_place.tested.same_bits(dx.tested)) << what;
      }
    }
  }
}

TEST_P(Losses, OfLargeLogitsStayFinite) {
  HostTensor x = HostTensor::of(dtype(), {-1000, 1000, -1000, 1000}), targets = HostTensor::of(DType::f32, {0, 1, 1, 0});
  HostTensor loss({1}, DType::f32), dx = fresh({4}), dloss = HostTensor::of(DType::f32, {1});
  tested_->element_loss(*stream_, ElementLoss::binary_cross_entropy, x, targets, loss);
  tested_->element_loss_backward(*stream_, ElementLoss::binary_cross_entropy, x, targets, dloss, dx);
  stream_->synchronize();
  EXPECT_EQ(loss.at(0), 500);
  const double expected[] = {0, 0, -0.25, 0.25};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(dx.at(i), expected[i]) << i;
}

TEST_P(Losses, OfClassesAreTheOracles) {
  for (const auto [rows, classes] : kLossDims) {
    HostTensor logits = random({rows, classes}, 1, -5, 5), targets = HostTensor::random_ids({rows}, classes, 2);
    for (std::int64_t row = 2; row < rows; row += 5) targets.set(row, kIgnored);
    HostTensor dloss = HostTensor::of(DType::f32, {0.75});
    Pair loss({1}, DType::f32), dlogits({rows, classes}, dtype()), in_place(logits);
    both([&](Kernels& kernels, bool r) {
      kernels.cross_entropy(*stream_, logits, targets, kIgnored, loss.of(r));
      kernels.cross_entropy_backward(*stream_, logits, targets, kIgnored, dloss, dlogits.of(r));
      kernels.cross_entropy_backward(*stream_, in_place.of(r), targets, kIgnored, dloss, in_place.of(r));
    });
    const std::string what = fmt::format("{} rows, {} classes", rows, classes);
    const double row_error = 4 * static_cast<double>(classes + 16) * 0x1p-24;  // of the sum of exponentials
    EXPECT_TRUE(loss.near(row_error)) << what;
    EXPECT_TRUE(dlogits.near(row_error)) << what;
    EXPECT_TRUE(in_place.tested.same_bits(dlogits.tested)) << what;
    for (std::int64_t row = 2; row < rows; row += 5) {
      for (std::int64_t c = 0; c < classes; ++c) ASSERT_EQ(dlogits.tested.at(row * classes + c), 0) << what;
    }
  }
}

TEST_P(Losses, OfClassesWithLogitsOfThousandsStayFinite) {
  HostTensor logits = HostTensor::of(dtype(), {5000, -5000, 0, -5000, 0, 5000}), targets = HostTensor::of(DType::i32, {0, 1});
  HostTensor loss({1}, DType::f32);
  tested_->cross_entropy(*stream_, logits.view().reshaped({2, 3}), targets, kIgnored, loss);
  stream_->synchronize();
  const double expected = 5000.0 / 2;
  EXPECT_NEAR(loss.at(0), expected, expected * rounding(dtype()));
}

TEST_P(Losses, OfNothingAreNotANumber) {
  HostTensor none = fresh({0}), no_targets({0}, DType::f32), loss({1}, DType::f32);
  tested_->element_loss(*stream_, ElementLoss::squared_error, none, no_targets, loss);
  stream_->synchronize();
  EXPECT_TRUE(std::isnan(loss.at(0)));
  HostTensor logits = random({2, 3}, 1), ignored = HostTensor::of(DType::i32, {kIgnored, kIgnored}), dlogits = fresh({2, 3});
  HostTensor dloss = HostTensor::of(DType::f32, {1}), other({1}, DType::f32);
  tested_->cross_entropy(*stream_, logits, ignored, kIgnored, other);
  tested_->cross_entropy_backward(*stream_, logits, ignored, kIgnored, dloss, dlogits);
  stream_->synchronize();
  EXPECT_TRUE(std::isnan(other.at(0)));
  for (std::int64_t i = 0; i < dlogits.numel(); ++i) EXPECT_EQ(dlogits.at(i), 0) << i;
}

TEST_P(Losses, RefuseTensorsThatDoNotFit) {
  HostTensor x = random({2, 3}, 1), loss({1}, DType::f32), half_of_them({3}, DType::f32), ids({3}, DType::i32);
  EXPECT_THROW(tested_->element_loss(*stream_, ElementLoss::squared_error, x, half_of_them, loss), Error);
  EXPECT_THROW(tested_->element_loss(*stream_, ElementLoss::squared_error, x, HostTensor({2, 3}, DType::i32), loss), Error);
  EXPECT_THROW(tested_->cross_entropy(*stream_, x, ids, kIgnored, loss), Error);
  EXPECT_THROW(tested_->cross_entropy(*stream_, x, HostTensor({2}, DType::f32), kIgnored, loss), Error);
  EXPECT_THROW(tested_->cross_entropy(*stream_, x, HostTensor({2}, DType::i32), kIgnored, HostTensor({2}, DType::f32)), Error);
}

INSTANTIATE_TEST_SUITE_P(Lanes, Losses, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
