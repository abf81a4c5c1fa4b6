// SPDX-License-Identifier: Apache-2.0
#include "../../unit/tensor/kernels_testing.hpp"

// CudaKernelsOptions::f32_logits = false.
namespace mica::testing {
namespace {

struct Dims {
  std::int64_t rows, vocab, width;
};

class NarrowLogits : public KernelsTest {
 protected:
  NarrowLogits() : KernelsTest({.logits_bytes = 4096, .f32_logits = false}) {}
};

TEST_P(NarrowLogits, AreTheOraclesWithinTheirRounding) {
  for (const Dims& d : {Dims{3, 7, 5}, Dims{17, 33, 3}, Dims{65, 129, 33}, Dims{3, 4101, 3}, Dims{2, 33001, 2}}) {
    HostTensor hidden = random({d.rows, d.width}, 1, -2, 2), w = random({d.vocab, d.width}, 2, -2, 2);
    HostTensor ids = HostTensor::random_ids({d.rows}, d.vocab, 3), dloss = HostTensor::of(DType::f32, {1});
    ids.set(d.rows - 1, -1);
    Pair loss({1}, DType::f32), dhidden({d.rows, d.width}, dtype()), dw({d.vocab, d.width}, DType::f32);
    both([&](Kernels& kernels, bool r) {
      kernels.head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss.of(r), dhidden.of(r), dw.of(r), Write::overwrite);
    });
    // A logit is at most 4 * width. A row's loss errs by twice its error, a probability p by p * twice its error;
    // dlogits are rounded too, and those of one row add up to 2 at most.
    const double logit = rounding(dtype()) / 2 * 4 * static_cast<double>(d.width) +
                         4 * (sum_error(d.width, 2, 2) + static_cast<double>(d.vocab + 16) * 0x1p-24);
    const double row = 2 * (std::expm1(2 * logit) + rounding(dtype()) / 2);
    const std::string what = fmt::format("{} rows, vocab {}", d.rows, d.vocab);
    EXPECT_TRUE(loss.near(static_cast<double>(d.rows) * 2 * logit)) << what;
    EXPECT_TRUE(dhidden.near(2 * row + sum_error(d.vocab, 2.0 / static_cast<double>(d.vocab), 2))) << what;
    EXPECT_TRUE(dw.near(2 * row * static_cast<double>(d.rows))) << what;
  }
}

/// Of the logits 2048 and 2049, bf16 and f16 have only the first.
TEST_P(NarrowLogits, AreOfTheOperandsDType) {
  HostTensor hidden = HostTensor::random({1, 2}, dtype(), 1), w = fresh({2, 2}), loss({1}, DType::f32);
  hidden.set(0, 1), hidden.set(1, 1);
  w.set(0, 2048), w.set(1, 0), w.set(2, 2048), w.set(3, 1);
  HostTensor ids = HostTensor::of(DType::i32, {0});
  tested_->head_loss(*stream_, hidden, w, ids, 1, loss);
  stream_->synchronize();
  EXPECT_NEAR(loss.at(0), std::log1p(dtype() == DType::f32 ? std::exp(1.0) : 1.0), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Lanes, NarrowLogits, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
