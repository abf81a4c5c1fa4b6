// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/sliced_product.hpp"
#include "product_testing.hpp"

// Also where oneDNN would not read B in place: a product with AVX-512 is as right.
namespace mica::cpu {
namespace {

constexpr std::int64_t kMostColumns = 512;  // of a slice

TEST(SlicedProduct, IsTheProductOfItsSlices) {
  constexpr std::int64_t m = 17, k = 9;
  Products products(true);
  for (const std::int64_t n : {std::int64_t{1}, kMostColumns, kMostColumns + 1, 2 * kMostColumns,
                               2 * kMostColumns + 77}) {  // one slice, two, three; the last with fewer columns
    for (const bool transposed_a : {false, true}) {
      for (const bool has_bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          ProductSpec spec{.m = m,
                           .n = n,
                           .k = k,
                           .lda = (transposed_a ? m : k) + 3,
                           .ldb = k + 2,
                           .ldc = n + 5,
                           .transposed_a = transposed_a,
                           .transposed_b = true,
                           .accumulate = accumulate};
          if (has_bias) spec.bias = DType::f32;
          const SlicedProduct product(spec, products);
          expect_exact(product, spec);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// The shapes of outputs of layers, and only those that oneDNN slows down.
TEST(SlicedProduct, SuitsFewRowsOfManyColumns) {
  const std::int64_t n = 6 * kMostColumns;
  const ProductSpec outputs{.m = 256, .n = n, .k = 768, .lda = 768, .ldb = 768, .ldc = n, .transposed_b = true};
  const bool is_slow = SlicedProduct::suits(outputs);  // here: not with AVX-512, oneDNN 3 or several threads
  EXPECT_TRUE(!is_slow || !Products::processor_has_bf16());
  const auto suits = [&](auto change) {
    ProductSpec s = outputs;
    change(s);
    return SlicedProduct::suits(s);
  };
  EXPECT_EQ(suits([](ProductSpec& s) { s.bias = DType::f32; }), is_slow);
  EXPECT_EQ(suits([](ProductSpec& s) { s.accumulate = s.transposed_a = true; }), is_slow);
  EXPECT_EQ(suits([](ProductSpec& s) { s.n = s.ldc = kMostColumns + 1; }), is_slow);
  EXPECT_FALSE(suits([](ProductSpec& s) { s.n = s.ldc = kMostColumns; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 288; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 16; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.k = s.lda = s.ldb = 256; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.transposed_b = false; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.a = s.b = s.c = DType::bf16; }));
}

}  // namespace
}  // namespace mica::cpu
