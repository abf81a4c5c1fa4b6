// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

struct MatmulDims {
  std::int64_t m, n, k;
};
constexpr MatmulDims kMatmulDims[] = {{1, 1, 1},   {3, 7, 1},     {1, 33, 17},   {65, 1, 3},
                                      {7, 17, 33}, {129, 65, 33}, {33, 129, 65}, {16, 64, 129}};

class Products : public KernelsTest {};

TEST_P(Products, LinearIsTheOracles) {
  for (const auto [m, n, k] : kMatmulDims) {
    for (const DType out : {DType::f32, dtype()}) {
      HostTensor x = random({m, k}, 1), w = random({n, k}, 2), bias = random({n}, 3);
      Pair with_bias({m, n}, out), without({m, n}, out);
      both([&](Kernels& kernels, bool r) {
        kernels.linear(*stream_, x, w, bias, with_bias.of(r));
        kernels.linear(*stream_, x, w, {}, without.of(r));
      });
      const double of_bias = out == DType::f32 ? 0 : rounding_before_bias(k, without.reference);
      EXPECT_TRUE(with_bias.near(sum_error(k + 1) + of_bias)) << m << "x" << n << "x" << k;
      EXPECT_TRUE(without.near(sum_error(k))) << m << "x" << n << "x" << k;
    }
  }
}

TEST_P(Products, LinearSeesLeadingDimsAsRows) {
  HostTensor x = random({3, 5, 7}, 1), w = random({2, 7}, 2);
  Pair y({3, 5, 2}, dtype());
  both([&](Kernels& kernels, bool r) { kernels.linear(*stream_, x, w, {}, y.of(r)); });
  EXPECT_TRUE(y.near(sum_error(7)));
}

TEST_P(Products, BackwardInputOverwritesOrAccumulates) {
  for (const auto [m, n, k] : kMatmulDims) {
    HostTensor dy = random({m, n}, 4), w = random({n, k}, 5);
    Pair over({m, k}, dtype()), added(random({m, k}, 6));
    both([&](Kernels& kernels, bool r) {
      kernels.linear_backward_input(*stream_, dy, w, over.of(r), Write::overwrite);
      kernels.linear_backward_input(*stream_, dy, w, added.of(r), Write::accumulate);
    });
    EXPECT_TRUE(over.near(sum_error(n))) << m << "x" << n << "x" << k;
    EXPECT_TRUE(added.near(sum_error(n + 1))) << m << "x" << n << "x" << k;
  }
}

/// Gradients of parameters may have any dtype whatever the activations have.
TEST_P(Products, BackwardParamsOfAnyDtypeOverwritesOrAccumulates) {
  for (const auto [m, n, k] : kMatmulDims) {
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
      HostTensor dy = random({m, n}, 4), x = random({m, k}, 5);
      Pair dw({n, k}, gradient), dbias({n}, gradient);
      Pair dw_added(HostTensor::random({n, k}, gradient, 6)), dbias_added(HostTensor::random({n}, gradient, 7));
      Pair dw_alone({n, k}, gradient);
      both([&](Kernels& kernels, bool r) {
        kernels.linear_backward_params(*stream_, dy, x, dw.of(r), dbias.of(r), Write::overwrite);
        kernels.linear_backward_params(*stream_, dy, x, dw_added.of(r), dbias_added.of(r), Write::accumulate);
        kernels.linear_backward_params(*stream_, dy, x, dw_alone.of(r), {}, Write::overwrite);
      });
      EXPECT_TRUE(dw.near(sum_error(m))) << m << "x" << n << "x" << k;
      EXPECT_TRUE(dbias.near(sum_error(m))) << m << "x" << n;
      EXPECT_TRUE(dw_added.near(sum_error(m + 1))) << m << "x" << n << "x" << k;
      EXPECT_TRUE(dbias_added.near(sum_error(m + 1))) << m << "x" << n;
      EXPECT_TRUE(dw_alone.tested.same_bits(dw.tested)) << "dw does not depend on whether dbias is wanted";
    }
  }
}

/// f32 activations with bf16 weights: no library call, sliced through f32. The second is wider than one slice.
TEST_P(Products, MixedDtypesGoByWayOfF32) {
  const DType other = dtype() == DType::f32 ? DType::bf16 : DType::f32;
  for (const auto [m, n, k] : {MatmulDims{7, 17, 33}, MatmulDims{2, 150, 40000}}) {
    HostTensor x = random({m, k}, 1), w = HostTensor::random({n, k}, other, 2), bias = HostTensor::random({n}, other, 3);
    Pair y({m, n}, dtype());
    both([&](Kernels& kernels, bool r) { kernels.linear(*stream_, x, w, bias, y.of(r)); });
    // The deep sums: partial sums of random signs stay below 4 * sqrt(k), far below k.
    EXPECT_TRUE(y.near(k > 1000 ? static_cast<double>(k) * 0x1p-24 * 4 * std::sqrt(k) : sum_error(k + 1)));
  }
}

TEST_P(Products, NoRowsWriteNothingButZeroGradients) {
  HostTensor x = random({0, 5}, 1), w = random({3, 5}, 2), dy = random({0, 3}, 3), y = fresh({0, 3}), dx = fresh({0, 5});
  Pair dw({3, 5}, DType::f32), dbias({3}, DType::f32), kept(HostTensor::random({3, 5}, DType::f32, 9));
  both([&](Kernels& kernels, bool r) {
    kernels.linear(*stream_, x, w, {}, y);
    kernels.linear_backward_input(*stream_, dy, w, dx, Write::overwrite);
    kernels.linear_backward_params(*stream_, dy, x, dw.of(r), dbias.of(r), Write::overwrite);
    kernels.linear_backward_params(*stream_, dy, x, kept.of(r), {}, Write::accumulate);
  });
  EXPECT_TRUE(dw.near(0));
  EXPECT_TRUE(dbias.near(0));
  EXPECT_TRUE(kept.tested.same_bits(kept.reference));
}

TEST_P(Products, TheSameCallGivesTheSameBits) {
  HostTensor x = random({129, 65}, 1), w = random({33, 65}, 2), dy = random({129, 33}, 3);
  HostTensor y = fresh({129, 33}), y2 = y, dw = fresh({33, 65}), dw2 = dw;
  tested_->linear(*stream_, x, w, {}, y);
  tested_->linear(*stream_, x, w, {}, y2);
  tested_->linear_backward_params(*stream_, dy, x, dw, {}, Write::overwrite);
  tested_->linear_backward_params(*stream_, dy, x, dw2, {}, Write::overwrite);
  stream_->synchronize();
  EXPECT_TRUE(y.same_bits(y2));
  EXPECT_TRUE(dw.same_bits(dw2));
}

TEST_P(Products, RecordsWhatItMultiplies) {
  HostTensor x = random({4, 6}, 1), w = random({5, 6}, 2), y = fresh({4, 5}), dx = fresh({4, 6}), dw = fresh({5, 6});
  std::vector<ProductShape> list;
  tested_->record_products(&list);
  tested_->linear(*stream_, x, w, {}, y);
  tested_->linear_backward_input(*stream_, y, w, dx, Write::overwrite);
  tested_->linear_backward_params(*stream_, y, x, dw, {}, Write::overwrite);
  tested_->record_products(nullptr);
  tested_->linear(*stream_, x, w, {}, y);
  stream_->synchronize();
  ASSERT_EQ(list.size(), 3U);
  const auto is = [&](std::size_t i, std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
    const ProductShape& p = list[i];
    return p.m == m && p.n == n && p.k == k && p.transposed_a == ta && p.transposed_b == tb && p.dtype == dtype();
  };
  EXPECT_TRUE(is(0, 4, 5, 6, false, true));
  EXPECT_TRUE(is(1, 4, 6, 5, false, false));
  EXPECT_TRUE(is(2, 5, 6, 4, true, false));
}

TEST_P(Products, RefusesWhatDoesNotFit) {
  HostTensor x = random({4, 6}, 1), w = random({5, 7}, 2), y = fresh({4, 5});
  try {
    tested_->linear(*stream_, x, w, {}, y);
    FAIL() << "6 columns were multiplied with 7";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), (std::string("linear: x is ") + std::string(dtype_name(dtype())) + " [4, 6], expected 7 columns").c_str());
  }
  EXPECT_THROW(tested_->linear(*stream_, w, w, {}, y), Error) << "y has too few elements";
  EXPECT_THROW(tested_->linear(*stream_, TensorView(nullptr, Shape{4, 7}, dtype()), w, {}, y), Error) << "x is absent";
}

INSTANTIATE_TEST_SUITE_P(Lanes, Products, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
