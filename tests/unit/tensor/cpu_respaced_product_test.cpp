// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include "../../../src/tensor/cpu/respaced_product.hpp"
#include "product_testing.hpp"

// Also where oneDNN would not read B in place: a product with AVX-512 is as right.
namespace mica::cpu {
namespace {

TEST(RespacedProduct, IsTheSumOfItsSlices) {
  constexpr std::int64_t m = 3, n = 512;
  Products products(true);
  for (const std::int64_t k : {1, 7, 3971, 3972, 9001}) {  // one slice, two, three; the last of one row and of many
    for (const bool transposed_a : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const ProductSpec spec{.m = m,
                               .n = n,
                               .k = k,
                               .lda = transposed_a ? m + 2 : k + 3,
                               .ldb = 1024,
                               .ldc = n + 5,
                               .transposed_a = transposed_a,
                               .accumulate = accumulate};
        const RespacedProduct product(spec, products);
        expect_exact(product, spec);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The shapes of input gradients, and only those that oneDNN slows down.
TEST(RespacedProduct, SuitsFewRowsOfWideBs) {
  const ProductSpec gradient{.m = 256, .n = 3072, .k = 768, .lda = 768, .ldb = 3072, .ldc = 3072};
  const bool is_slow = RespacedProduct::suits(gradient);  // here: not with AVX-512, nor with oneDNN 3
  EXPECT_TRUE(!is_slow || !Products::processor_has_bf16());
  const auto suits = [&](auto change) {
    ProductSpec s = gradient;
    change(s);
    return RespacedProduct::suits(s);
  };
  EXPECT_EQ(suits([](ProductSpec& s) { s.n = s.ldb = s.ldc = 512; }), is_slow);
  EXPECT_EQ(suits([](ProductSpec& s) { s.accumulate = s.transposed_a = true; }), is_slow);
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 288; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 16; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.k = 0; }));
  EXPECT_EQ(suits([](ProductSpec& s) { s.n = s.ldb = 768; }), is_slow && omp_get_max_threads() == 1);
  EXPECT_FALSE(suits([](ProductSpec& s) {
    s.n = s.ldb = 768;
    s.m = 64;
  })) << "a copy would take longer";
  EXPECT_EQ(suits([](ProductSpec& s) { s.m = 64; }), is_slow);
  EXPECT_FALSE(suits([](ProductSpec& s) { s.n = s.ldb = 784; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.n = s.ldb = 256; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.transposed_b = true; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.bias = DType::f32; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.a = s.b = s.c = DType::bf16; }));
}

}  // namespace
}  // namespace mica::cpu
