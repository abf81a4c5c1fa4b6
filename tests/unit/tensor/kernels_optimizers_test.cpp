// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/loss_scale.hpp"

#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

class Optimizers : public KernelsTest {
 protected:
  static HostTensor f32(std::int64_t n, unsigned seed, double low = -1) { return HostTensor::random({n}, DType::f32, seed, low, 1); }
};

/// 200000 elements: four blocks of partial sums.
TEST_P(Optimizers, PowerSumIsTheOracles) {
  for (const std::int64_t n : {0, 1, 7, 129, 200000}) {
    for (const double p : {1.0, 2.0, 3.0, kInfNorm}) {
      HostTensor x = random({n}, 1, -2, 2);
      Pair over({1}, DType::f32), added(HostTensor::of(DType::f32, {1.25}));
      both([&](Kernels& kernels, bool r) {
        kernels.power_sum(*stream_, x, p, over.of(r), Write::overwrite);
        kernels.power_sum(*stream_, x, p, added.of(r), Write::accumulate);
      });
      // Sums are double inside: only the rounding to f32 counts (and powf's, for other p).
      EXPECT_TRUE(over.near(p == 3.0 ? 8.0 * static_cast<double>(n) * 0x1p-22 : 0)) << n << " p=" << p;
      EXPECT_TRUE(added.near(p == 3.0 ? 8.0 * static_cast<double>(n) * 0x1p-22 : 0)) << n << " p=" << p;
    }
  }
}

/// Pieces of flat parameters begin anywhere.
TEST_P(Optimizers, PowerSumsBitsDoNotDependOnWhereTheArrayBegins) {
  constexpr std::int64_t kNumel = 40009;
  HostTensor x = random({kNumel}, 1, -2, 2), shifted = fresh({kNumel + 16});
  for (std::int64_t shift = 0; shift < 9; ++shift) {
    for (std::int64_t i = 0; i < kNumel; ++i) shifted.set(i + shift, x.at(i));
    HostTensor sum({1}, DType::f32), sum_shifted = sum;
    tested_->power_sum(*stream_, x, 2, sum, Write::overwrite);
    tested_->power_sum(*stream_, shifted.view().slice(shift, kNumel), 2, sum_shifted, Write::overwrite);
    stream_->synchronize();
    EXPECT_TRUE(sum.same_bits(sum_shifted)) << shift;
  }
}

TEST_P(Optimizers, PowerSumHasTheSameBitsOnAnyNumberOfThreads) {
  HostTensor x = random({300001}, 1), one({1}, DType::f32), many = one;
  omp_set_num_threads(1);
  tested_->power_sum(*stream_, x, 2, one, Write::overwrite);
  omp_set_num_threads(kManyThreads);
  tested_->power_sum(*stream_, x, 2, many, Write::overwrite);
  stream_->synchronize();
  EXPECT_TRUE(one.same_bits(many));
}

TEST_P(Optimizers, NansReachTheNormAndTheCoefficient) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double p : {2.0, kInfNorm}) {
    for (const std::int64_t where : {0, 5, 199999}) {
      HostTensor x = random({200000}, 1), sum({1}, DType::f32), norm = sum, coefficient = sum;
      x.set(where, nan);
      tested_->power_sum(*stream_, x, p, sum, Write::overwrite);
      tested_->clip_coefficient(*stream_, sum, p, 1.0, norm, coefficient);
      stream_->synchronize();
      EXPECT_TRUE(std::isnan(norm.at(0))) << p << " " << where;
      EXPECT_TRUE(std::isnan(coefficient.at(0))) << p << " " << where;
    }
  }
}

TEST_P(Optimizers, ClipCoefficientIsTheOracles) {
  for (const double sum : {0.0, 0.25, 9.0, 1e30}) {
    for (const double p : {1.0, 2.0, 3.0, kInfNorm}) {
      for (const double max_norm : {1.0, 1e9, std::numeric_limits<double>::infinity()}) {
        HostTensor s = HostTensor::of(DType::f32, {sum});
        Pair norm({1}, DType::f32), coefficient({1}, DType::f32);
        both([&](Kernels& kernels, bool r) { kernels.clip_coefficient(*stream_, s, p, max_norm, norm.of(r), coefficient.of(r)); });
        EXPECT_TRUE(norm.near(0)) << sum << " " << p;
        EXPECT_TRUE(coefficient.near(0)) << sum << " " << p << " " << max_norm;
      }
    }
  }
}

TEST_P(Optimizers, AdamWIsTheOracles) {
  for (const std::int64_t n : {0, 1, 7, 129, 50000}) {
    for (const std::int64_t step : {1, 1000}) {
      for (const bool scaled : {false, true}) {
        HostTensor grad = f32(n, 2), grad_scale = HostTensor::of(DType::f32, {0.25}), skip = HostTensor::of(DType::f32, {0});
        Pair param(f32(n, 1)), m(f32(n, 3)), v(f32(n, 4, 0));
        both([&](Kernels& kernels, bool r) {
          kernels.adamw(*stream_, {.param = param.of(r),
                                   .grad = grad,
                                   .exp_avg = m.of(r),
                                   .exp_avg_sq = v.of(r),
                                   .lr = 0.01,
                                   .weight_decay = 0.1,
                                   .step = step,
                                   .grad_scale = scaled ? ConstTensorView(grad_scale) : ConstTensorView{},
                                   .skip = skip});
        });
        EXPECT_TRUE(m.near(4 * 0x1p-24)) << n;
        EXPECT_TRUE(v.near(4 * 0x1p-24)) << n;
        // The step is lr * m / (sqrt(v) + eps), here up to 1e3 * lr: relative error of a few units.
        EXPECT_TRUE(param.near(10 * 16 * 0x1p-24)) << n << " step " << step;
      }
    }
  }
}

TEST_P(Optimizers, SgdIsTheOracles) {
  for (const std::int64_t n : {1, 7, 129, 50000}) {
    for (const int variant : {0, 1, 2, 3}) {
      HostTensor grad = f32(n, 2);
      Pair param(f32(n, 1)), momentum(f32(n, 3));
      both([&](Kernels& kernels, bool r) {
        SgdArgs args{
            .param = param.of(r), .grad = grad, .momentum_buffer = {}, .lr = 0.1, .weight_decay = 0.01, .grad_scale = {}, .skip = {}};
        if (variant > 0) {
          args.momentum_buffer = momentum.of(r);
          args.momentum = 0.9;
          args.dampening = variant == 1 ? 0.5 : 0;
          args.nesterov = variant == 2;
          args.first_step = variant == 3;
        }
        kernels.sgd(*stream_, args);
      });
      EXPECT_TRUE(param.near(8 * 0x1p-24)) << n << " variant " << variant;
      EXPECT_TRUE(momentum.near(8 * 0x1p-24)) << n << " variant " << variant;
    }
  }
}

TEST_P(Optimizers, ASkippedStepChangesNothing) {
  HostTensor skip = HostTensor::of(DType::f32, {1}), grad = f32(17, 2);
  HostTensor param = f32(17, 1), m = f32(17, 3), v = f32(17, 4, 0);
  const HostTensor before = param, m_before = m, v_before = v;
  tested_->adamw(*stream_,
                 {.param = param, .grad = grad, .exp_avg = m, .exp_avg_sq = v, .lr = 1, .step = 1, .grad_scale = {}, .skip = skip});
  tested_->sgd(*stream_, {.param = param, .grad = grad, .momentum_buffer = m, .lr = 1, .momentum = 0.9, .grad_scale = {}, .skip = skip});
  stream_->synchronize();
  EXPECT_TRUE(param.same_bits(before));
  EXPECT_TRUE(m.same_bits(m_before));
  EXPECT_TRUE(v.same_bits(v_before));
}

TEST_P(Optimizers, StepsThatWereSkippedDoNotCountInBiasCorrection) {
  HostTensor grad = f32(17, 2), skipped = HostTensor::of(DType::f32, {3});
  Pair param(f32(17, 1)), m(f32(17, 3)), v(f32(17, 4, 0)), counted(f32(17, 1)), m2(f32(17, 3)), v2(f32(17, 4, 0));
  both([&](Kernels& kernels, bool r) {
    kernels.adamw(*stream_, {.param = param.of(r),
                             .grad = grad,
                             .exp_avg = m.of(r),
                             .exp_avg_sq = v.of(r),
                             .lr = 0.01,
                             .step = 5,
                             .grad_scale = {},
                             .skip = {},
                             .skipped_steps = skipped});
    kernels.adamw(*stream_, {.param = counted.of(r),
                             .grad = grad,
                             .exp_avg = m2.of(r),
                             .exp_avg_sq = v2.of(r),
                             .lr = 0.01,
                             .step = 2,
                             .grad_scale = {},
                             .skip = {}});
  });
  EXPECT_TRUE(param.tested.same_bits(counted.tested));
  EXPECT_TRUE(param.reference.same_bits(counted.reference));
}

// D7. 200000 elements are several blocks.
TEST_P(Optimizers, D7_UnscaleDividesAndFindsWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::int64_t n : {0, 1, 7, 200000}) {
    for (const double bad : {0.0, inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
      for (const std::int64_t where : {std::int64_t{0}, n / 2, n - 1}) {
        if (where < 0 || where >= n) continue;
        HostTensor start = random({n}, 1), scale = HostTensor::of(DType::f32, {1024});
        if (bad != 0) start.set(where, bad);
        Pair x(start), found(HostTensor::of(DType::f32, {0}));
        both([&](Kernels& kernels, bool r) { kernels.unscale(*stream_, x.of(r), scale, found.of(r)); });
        ASSERT_EQ(found.tested.at(0), bad == 0 ? 0 : 1) << n << " " << bad << " at " << where;
        ASSERT_EQ(found.reference.at(0), bad == 0 ? 0 : 1);
        ASSERT_TRUE(bad != 0 || x.tested.same_bits(x.reference));
      }
    }
  }
  HostTensor x = random({7}, 1), scale = HostTensor::of(DType::f32, {2}), found = HostTensor::of(DType::f32, {1});
  tested_->unscale(*stream_, x, scale, found);
  stream_->synchronize();
  EXPECT_EQ(found.at(0), 1) << "an earlier tensor's overflow was forgotten";
}

// D7: known answers. Growth after two steps without an overflow; never to infinity.
TEST_P(Optimizers, UpdateScaleBacksOffAndGrows) {
  struct Step {
    double found, scale, tracker, skipped;  // found before, the rest after
  };
  constexpr double kLargest = 0x1p127;
  for (const auto& [first, steps] : std::vector<std::pair<double, std::vector<Step>>>{
           {8, {{0, 8, 1, 0}, {0, 16, 0, 0}, {0, 16, 1, 0}, {1, 8, 0, 1}, {1, 4, 0, 2}, {0, 4, 1, 2}, {0, 8, 0, 2}}},
           {kLargest, {{0, kLargest, 1, 0}, {0, kLargest, 0, 0}, {1, kLargest / 2, 0, 1}}},
           {1.5 * kLeastLossScale, {{1, kLeastLossScale, 0, 1}, {1, kLeastLossScale, 0, 2}, {0, kLeastLossScale, 1, 2}}},
           {kLeastLossScale / 2, {{1, kLeastLossScale / 2, 0, 1}}}}) {
    Pair scale(HostTensor::of(DType::f32, {first})), tracker(HostTensor::of(DType::f32, {0})), skipped = tracker;
    for (const Step& step : steps) {
      HostTensor found = HostTensor::of(DType::f32, {step.found});
      both([&](Kernels& kernels, bool r) {
        kernels.update_scale(*stream_, {.scale = scale.of(r),
                                        .growth_tracker = tracker.of(r),
                                        .skipped_steps = skipped.of(r),
                                        .found_inf = found,
                                        .growth_interval = 2});
      });
      for (const auto& each : {&scale.tested, &scale.reference}) EXPECT_EQ(each->at(0), step.scale);
      for (const auto& each : {&tracker.tested, &tracker.reference}) EXPECT_EQ(each->at(0), step.tracker);
      for (const auto& each : {&skipped.tested, &skipped.reference}) EXPECT_EQ(each->at(0), step.skipped);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, Optimizers, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
