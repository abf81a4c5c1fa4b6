// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "../../../src/tensor/cpu/respaced_product.hpp"

// Also where oneDNN would not read B in place: a product with AVX-512 is as right.
namespace mica::cpu {
namespace {

/// Integers, whose sums of a few thousand products are exact in floats.
std::vector<float> small_integers(std::int64_t n, std::int64_t modulus) {
  std::vector<float> values;
  const std::int64_t middle = modulus / 2;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(i * 7 % modulus - middle));
  return values;
}

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
        const auto at = [&](std::int64_t row, std::int64_t i) {
          return static_cast<std::size_t>(transposed_a ? i * spec.lda + row : row * spec.lda + i);
        };
        const std::vector<float> a = small_integers((transposed_a ? k : m) * spec.lda, 11), b = small_integers(k * spec.ldb, 13);
        const std::vector<float> before = small_integers(m * spec.ldc, 17);
        std::vector<float> c = before;
        std::vector<std::byte> scratch(static_cast<std::size_t>(product.scratch_bytes()) + 64);
        void* aligned = scratch.data();
        std::size_t space = scratch.size();
        ASSERT_NE(std::align(64, static_cast<std::size_t>(product.scratch_bytes()), aligned, space), nullptr);
        product.run(a.data(), b.data(), nullptr, c.data(), aligned);
        for (std::int64_t row = 0; row < m; ++row) {
          for (std::int64_t col = 0; col < spec.ldc; ++col) {
            const auto here = static_cast<std::size_t>(row * spec.ldc + col);
            double expected = accumulate || col >= n ? before[here] : 0;
            for (std::int64_t i = 0; i < (col < n ? k : 0); ++i)
              expected += a[at(row, i)] * b[static_cast<std::size_t>(i * spec.ldb + col)];
            ASSERT_EQ(c[here], expected) << row << " " << col << " of k " << k << (transposed_a ? ", a transposed" : "")
                                         << (accumulate ? ", added" : "");
          }
        }
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
  EXPECT_FALSE(suits([](ProductSpec& s) { s.n = s.ldb = 768; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.transposed_b = true; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.bias = DType::f32; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.a = s.b = s.c = DType::bf16; }));
}

}  // namespace
}  // namespace mica::cpu
