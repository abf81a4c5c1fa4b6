// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/converted_product.hpp"
#include "product_testing.hpp"

namespace mica::cpu {
namespace {

struct Dims {
  std::int64_t m, n, k;
};

// Cut: nowhere, in columns, in columns and rows, in B's rows, there again with a shorter last part.
constexpr Dims kDims[] = {{5, 7, 3}, {1, 600, 4100}, {1000, 4100, 1}, {1, 500, 16390}, {2, 70, 40000}};

void expect_exact_in_all_forms(DType a, DType b, DType c) {
  Products products(false);
  for (const auto [m, n, k] : kDims) {
    for (const bool transposed_a : {false, true}) {
      for (const bool transposed_b : {false, true}) {
        ProductSpec spec{.m = m,
                         .n = n,
                         .k = k,
                         .lda = (transposed_a ? m : k) + 1,
                         .ldb = (transposed_b ? k : n) + 2,
                         .ldc = n + 3,
                         .transposed_a = transposed_a,
                         .transposed_b = transposed_b,
                         .a = a,
                         .b = b,
                         .c = c,
                         .accumulate = transposed_a != transposed_b};
        if (transposed_a && transposed_b) spec.bias = c;
        expect_exact(ConvertedProduct(spec, products), spec);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ConvertedProduct, IsTheSumOfItsParts) { expect_exact_in_all_forms(DType::bf16, DType::bf16, DType::bf16); }
TEST(ConvertedProduct, WritesFloats) { expect_exact_in_all_forms(DType::bf16, DType::bf16, DType::f32); }
TEST(ConvertedProduct, ConvertsOneOfTwoOperands) {
  expect_exact_in_all_forms(DType::f32, DType::bf16, DType::bf16);
  expect_exact_in_all_forms(DType::bf16, DType::f32, DType::f32);
}

// A head of 50,304 classes, 160 rows at a time: B would take 147 MiB in f32, and C's f32 sums in dw as much.
TEST(ConvertedProduct, TakesLittleMemory) {
  Products products(false);
  constexpr std::int64_t rows = 160, width = 768, vocab = 50304, mib = 1 << 20;
  constexpr DType half = DType::bf16;
  const auto beside_a = [&](const ProductSpec& s) { return ConvertedProduct(s, products).scratch_bytes() - 4 * s.m * s.k; };
  EXPECT_LT(
      beside_a({.m = rows, .n = vocab, .k = width, .lda = width, .ldb = width, .ldc = vocab, .transposed_b = true, .a = half, .b = half}),
      16 * mib);
  EXPECT_LT(beside_a({.m = rows, .n = width, .k = vocab, .lda = vocab, .ldb = width, .ldc = width, .a = half, .b = half, .c = half}),
            16 * mib);
  EXPECT_LT(beside_a({.m = vocab,
                      .n = width,
                      .k = rows,
                      .lda = vocab,
                      .ldb = width,
                      .ldc = width,
                      .transposed_a = true,
                      .a = half,
                      .b = half,
                      .c = half}),
            16 * mib);
}

}  // namespace
}  // namespace mica::cpu
