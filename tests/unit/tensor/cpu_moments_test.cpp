// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

/// Moments below fp32, which only CPUs keep. The lane's dtype is the first moment's.
class Moments : public KernelsTest {};

/// What fp32 has of neighbours in the format: relative to the value.
double quantum(DType moment) { return moment == DType::bf16 ? 0x1p-7 : 0.25; }
DType square_of(DType moment) { return moment == DType::moment8 ? DType::square8 : moment; }

TEST_P(Moments, AdamWIsTheOraclesRounded) {
  for (const std::int64_t n : {0, 1, 7, 129, 50001}) {
    for (const std::int64_t step : {1, 1000}) {
      HostTensor grad = HostTensor::random({n}, DType::f32, 2), grad_scale = HostTensor::of(DType::f32, {0.25});
      Pair param(HostTensor::random({n}, DType::f32, 1)), m(HostTensor::random({n}, dtype(), 3));
      Pair v(HostTensor::random({n}, square_of(dtype()), 4, 0, 1));
      both([&](Kernels& kernels, bool r) {
        kernels.adamw(*stream_, {.param = param.of(r),
                                 .grad = grad,
                                 .exp_avg = m.of(r),
                                 .exp_avg_sq = v.of(r),
                                 .lr = 0.01,
                                 .weight_decay = 0.1,
                                 .step = step,
                                 .grad_scale = grad_scale,
                                 .skip = {}});
      });
      EXPECT_TRUE(param.near(10 * 16 * 0x1p-24)) << n << " step " << step;
      // The oracle rounds to nearest, the CPU to a neighbour.
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_NEAR(m.tested.at(i), m.reference.at(i), 1.01 * quantum(dtype()) * std::abs(m.reference.at(i))) << i << " of " << n;
        ASSERT_NEAR(v.tested.at(i), v.reference.at(i), 1.01 * quantum(dtype()) * v.reference.at(i)) << i << " of " << n;
      }
    }
  }
}

TEST_P(Moments, SgdIsTheOraclesRounded) {
  for (const std::int64_t n : {1, 7, 129, 50001}) {
    HostTensor grad = HostTensor::random({n}, DType::f32, 2);
    Pair param(HostTensor::random({n}, DType::f32, 1)), momentum(HostTensor::random({n}, dtype(), 3));
    both([&](Kernels& kernels, bool r) {
      kernels.sgd(*stream_, {.param = param.of(r),
                             .grad = grad,
                             .momentum_buffer = momentum.of(r),
                             .lr = 0.1,
                             .momentum = 0.9,
                             .grad_scale = {},
                             .skip = {}});
    });
    EXPECT_TRUE(param.near(8 * 0x1p-24)) << n;
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(momentum.tested.at(i), momentum.reference.at(i), 1.01 * quantum(dtype()) * std::abs(momentum.reference.at(i))) << i;
    }
  }
}

TEST_P(Moments, BothAreInOneFormat) {
  HostTensor grad = HostTensor::random({3}, DType::f32, 2), param = HostTensor::random({3}, DType::f32, 1);
  HostTensor narrow = HostTensor::random({3}, dtype(), 3), wide = HostTensor::random({3}, DType::f32, 3);
  const auto step = [&](HostTensor& m, HostTensor& v) {
    tested_->adamw(*stream_, {.param = param, .grad = grad, .exp_avg = m, .exp_avg_sq = v, .lr = 0.1, .grad_scale = {}, .skip = {}});
  };
  EXPECT_THROW(step(narrow, wide), Error);
  EXPECT_THROW(step(wide, narrow), Error);
  if (dtype() == DType::moment8) {
    EXPECT_THROW(step(narrow, narrow), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, Moments,
                         ::testing::Values(Lane{StreamMode::inlined, 1, DType::bf16}, Lane{StreamMode::threaded, kManyThreads, DType::bf16},
                                           Lane{StreamMode::inlined, 1, DType::moment8},
                                           Lane{StreamMode::threaded, kManyThreads, DType::moment8}),
                         lane_name);

}  // namespace
}  // namespace mica::testing
