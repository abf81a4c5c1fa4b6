// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

struct Dims {
  std::int64_t m, n, k;
};
constexpr Dims kDims[] = {{1, 1, 1}, {3, 7, 1}, {1, 33, 17}, {65, 1, 3}, {7, 17, 33}, {129, 65, 33}, {33, 129, 65}, {16, 64, 129}};

/// bf16 on a processor that cannot multiply it: the same results by way of f32.
class ProductsWithoutBf16 : public KernelsTest {
 protected:
  ProductsWithoutBf16() : KernelsTest({.use_native_bf16 = false}) {}
};

TEST_P(ProductsWithoutBf16, AreTheOracles) {
  EXPECT_FALSE(tested_->bf16_is_native());
  EXPECT_NE(tested_->description().find("by way of"), std::string::npos) << tested_->description();
  for (const auto [m, n, k] : kDims) {
    HostTensor x = random({m, k}, 1), w = random({n, k}, 2), bias = random({n}, 3), dy = random({m, n}, 4);
    Pair y({m, n}, dtype()), dx(random({m, k}, 5)), dw(HostTensor::random({n, k}, DType::f32, 6)), dbias({n}, DType::f32);
    both([&](Kernels& kernels, bool r) {
      kernels.linear(*stream_, x, w, bias, y.of(r));
      kernels.linear_backward_input(*stream_, dy, w, dx.of(r), Write::accumulate);
      kernels.linear_backward_params(*stream_, dy, x, dw.of(r), {}, Write::accumulate);
    });
    EXPECT_TRUE(y.near(sum_error(k + 1))) << m << "x" << n << "x" << k;
    EXPECT_TRUE(dx.near(sum_error(n + 1))) << m << "x" << n << "x" << k;
    EXPECT_TRUE(dw.near(sum_error(m + 1))) << m << "x" << n << "x" << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, ProductsWithoutBf16,
                         ::testing::Values(Lane{StreamMode::inlined, 1, DType::bf16},
                                           Lane{StreamMode::threaded, kManyThreads, DType::bf16}),
                         lane_name);

}  // namespace
}  // namespace mica::testing
