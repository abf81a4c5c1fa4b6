// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/gradcheck.hpp"

#include "nn_testing.hpp"

namespace mica::nn::testing {

// The four-point differences leave about 1e-4 of f32 rounding; a wrong term shows as 0.1 or more.
inline constexpr double kTolerance = 2e-3;

/// Tests that compare modules' backward with differences of their forward, on the CPU's kernels and on the oracle.
class GradientChecks : public ::testing::TestWithParam<KernelsKind> {
 protected:
  void check(Module& module, const Tensors& xs, std::int64_t expected_at_least = 1) {
    const GradcheckReport report = gradcheck(module, rig.context, xs);
    EXPECT_LT(report.worst_error, kTolerance) << report.worst_element;
    EXPECT_GE(report.num_checked, expected_at_least);
  }
  /// The same with cheap outputs kept, and with them made again in backward.
  void check_with_recompute(Module& module, const Tensors& xs, std::int64_t expected_at_least = 1) {
    for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
      rig.context.recompute = recompute;
      check(module, xs, expected_at_least);
    }
  }
  Rig rig{GetParam()};
};

}  // namespace mica::nn::testing
