// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/dense_parts.hpp"
#include "product_testing.hpp"

// On any processor: parts are as right where they are not faster.
namespace mica::cpu {
namespace {

ProductSpec input_gradient(std::int64_t tokens, std::int64_t in, std::int64_t out) {
  return {.m = tokens, .n = in, .k = out, .lda = out, .ldb = in, .ldc = in};
}
ProductSpec weight_gradient(std::int64_t tokens, std::int64_t in, std::int64_t out, DType dtype) {
  return {.m = out, .n = in, .k = tokens, .lda = out, .ldb = in, .ldc = in, .transposed_a = true, .a = dtype, .b = dtype};
}

TEST(DenseParts, MakeTheWholeProduct) {
  Products products(Products::processor_has_bf16());
  for (const bool accumulate : {false, true}) {
    const auto expect_right = [&](ProductSpec spec, DenseParts parts) {
      spec.accumulate = accumulate;
      const std::unique_ptr<Product> product = make_of_dense_parts(spec, parts, products);
      ASSERT_NE(product, nullptr);
      expect_exact(*product, spec);
    };
    for (const std::int64_t extent : {512, 1538, 2051}) {
      expect_right(input_gradient(9, 7, extent + 513), DenseParts::depth);
      expect_right(input_gradient(9, extent, 7), DenseParts::columns);
      expect_right(weight_gradient(9, 7, extent, DType::f32), DenseParts::rows);
      expect_right(weight_gradient(9, 7, extent, DType::bf16), DenseParts::rows);
      if (HasFatalFailure()) return;
    }
  }
}

// Those of GPT-2 that were measured.
TEST(DenseParts, AreFasterForGradientsOfLargeLayers) {
  EXPECT_EQ(faster_parts(input_gradient(1024, 768, 2304)), DenseParts::depth);
  EXPECT_EQ(faster_parts(input_gradient(256, 768, 50304)), DenseParts::depth);
  EXPECT_EQ(faster_parts(input_gradient(1024, 3072, 768)), DenseParts::columns);
  EXPECT_EQ(faster_parts(input_gradient(1024, 768, 768)), DenseParts::none);
  EXPECT_EQ(faster_parts(input_gradient(64, 768, 2304)), DenseParts::none);
  EXPECT_EQ(faster_parts(weight_gradient(1024, 3072, 768, DType::f32)), DenseParts::rows);
  EXPECT_EQ(faster_parts(weight_gradient(1024, 768, 3072, DType::f32)), DenseParts::none);
  EXPECT_EQ(faster_parts(weight_gradient(1024, 3072, 768, DType::bf16)), DenseParts::none);
  EXPECT_EQ(faster_parts(weight_gradient(768, 128, 512, DType::f32)), DenseParts::none);
  EXPECT_EQ(faster_parts(weight_gradient(64, 3072, 768, DType::f32)), DenseParts::none);
  EXPECT_EQ(make_of_dense_parts({}, DenseParts::none, *std::make_unique<Products>(true)), nullptr);
}

// oneDNN takes its packing kernel for such products anyway, and for layers' outputs both are alike.
TEST(DenseParts, LeaveOtherProductsWhole) {
  const auto parts = [](ProductSpec s, auto change) {
    change(s);
    return faster_parts(s);
  };
  const ProductSpec dx = input_gradient(1024, 768, 2304), dw = weight_gradient(1024, 3072, 768, DType::f32);
  EXPECT_EQ(parts(dx, [](ProductSpec& s) { s.lda += 16; }), DenseParts::none);
  EXPECT_EQ(parts(dx, [](ProductSpec& s) { s.ldb += 16; }), DenseParts::none);
  EXPECT_EQ(parts(dx, [](ProductSpec& s) { s.ldc += 16; }), DenseParts::none);
  EXPECT_EQ(parts(dx, [](ProductSpec& s) { s.bias = DType::f32; }), DenseParts::none);
  EXPECT_EQ(parts(dx, [](ProductSpec& s) { s.a = s.b = s.c = DType::bf16; }), DenseParts::none);
  EXPECT_EQ(parts(dx, [](ProductSpec& s) { s.transposed_b = true, s.ldb = s.k; }), DenseParts::none);
  EXPECT_EQ(parts(dw, [](ProductSpec& s) { s.lda += 16; }), DenseParts::none);
}

}  // namespace
}  // namespace mica::cpu
