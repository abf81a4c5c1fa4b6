// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include "../../../src/tensor/cpu/sliced_product.hpp"
#include "product_testing.hpp"

// Also where oneDNN would not read B in place: a product with AVX-512 is as right.
namespace mica::cpu {
namespace {

TEST(SlicedProduct, IsTheProductOfItsSlices) {
  constexpr std::int64_t m = 3, k = 9;
  Products products(true);
  for (const std::int64_t threads : {1, 2}) {
    omp_set_num_threads(static_cast<int>(threads));
    for (const std::int64_t n : {1L, 512L, 513L, 1100L, 2049L}) {  // one slice, two, three, five; the last of one column and of many
      for (const bool has_bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          ProductSpec spec{
              .m = m, .n = n, .k = k, .lda = k + 3, .ldb = k + 2, .ldc = n + 5, .transposed_b = true, .accumulate = accumulate};
          if (has_bias) spec.bias = DType::f32;
          const SlicedProduct product(spec, products);
          expect_exact(product, spec);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  omp_set_num_threads(1);
}

// The shapes of outputs of layers, and only those that oneDNN slows down.
TEST(SlicedProduct, SuitsFewRowsOfManyColumns) {
  const ProductSpec outputs{.m = 256, .n = 3072, .k = 768, .lda = 768, .ldb = 768, .ldc = 3072, .transposed_b = true};
  const bool is_slow = SlicedProduct::suits(outputs);  // here: not with AVX-512, nor with oneDNN 3
  EXPECT_TRUE(!is_slow || !Products::processor_has_bf16());
  const auto suits = [&](auto change) {
    ProductSpec s = outputs;
    change(s);
    return SlicedProduct::suits(s);
  };
  EXPECT_EQ(suits([](ProductSpec& s) { s.bias = DType::f32; }), is_slow);
  EXPECT_EQ(suits([](ProductSpec& s) { s.accumulate = s.transposed_a = true; }), is_slow);
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 288; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 16; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.k = s.lda = s.ldb = 256; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.n = s.ldc = 512; })) << "one slice";
  EXPECT_FALSE(suits([](ProductSpec& s) { s.transposed_b = false; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.a = s.b = s.c = DType::bf16; }));
}

}  // namespace
}  // namespace mica::cpu
