// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include "../../../src/tensor/cpu/deep_product.hpp"
#include "product_testing.hpp"

namespace mica::cpu {
namespace {

class DeepProductTest : public ::testing::Test {
 protected:
  ~DeepProductTest() override { omp_set_num_threads(threads_); }

 private:
  int threads_ = omp_get_max_threads();
};

TEST_F(DeepProductTest, IsTheSumOfItsParts) {
  Products products(Products::processor_has_bf16());
  for (const std::int64_t k : {1025, 2048, 2051, 3073}) {  // two parts of two lengths; two alike; three; four
    for (const bool transposed_a : {false, true}) {
      for (const bool transposed_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          for (const DType dtype : {DType::f32, DType::bf16}) {
            const std::int64_t m = 5, n = 6;
            const ProductSpec spec{.m = m,
                                   .n = n,
                                   .k = k,
                                   .lda = (transposed_a ? m : k) + 3,
                                   .ldb = (transposed_b ? k : n) + 2,
                                   .ldc = n + 1,
                                   .transposed_a = transposed_a,
                                   .transposed_b = transposed_b,
                                   .a = dtype,
                                   .b = dtype,
                                   .accumulate = accumulate};
            const DeepProduct product(spec, products);
            expect_exact(product, spec);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// A weight gradient of k rows.
ProductSpec gradient(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  return {.m = m, .n = n, .k = k, .lda = m, .ldb = n, .ldc = n, .transposed_a = true, .a = dtype, .b = dtype, .accumulate = true};
}

// With AVX-512, oneDNN 2.6 would take 900 MiB for 9 MiB of gradients.
TEST_F(DeepProductTest, ManyThreadsTakeLittleMemory) {
  omp_set_num_threads(96);
  Products products(Products::processor_has_bf16());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t k : {1024, 1500, 2048, 8192}) {
      EXPECT_LT(products.find(gradient(768, 3072, k, dtype))->scratch_bytes(), 80 << 20) << k << " rows of " << dtype_name(dtype);
    }
  }
}

TEST_F(DeepProductTest, SuitsLongSumsThatWouldTakeTimesTheirMemory) {
  const std::int64_t bytes = std::int64_t{4} * 4096 * 4096, most = 4 * bytes;
  const auto suits = [&](std::int64_t scratch, auto change) {
    ProductSpec s = gradient(4096, 4096, 2048, DType::bf16);
    change(s);
    return DeepProduct::suits(s, scratch);
  };
  EXPECT_TRUE(suits(most, [](ProductSpec&) {}));
  EXPECT_FALSE(suits(most - 1, [](ProductSpec&) {}));
  EXPECT_FALSE(suits(most, [](ProductSpec& s) { s.k = 1024; }));
  EXPECT_FALSE(suits(most, [](ProductSpec& s) { s.c = DType::bf16; }));
  EXPECT_FALSE(suits(most, [](ProductSpec& s) { s.bias = DType::f32; }));
  EXPECT_FALSE(suits((64 << 20) - 1, [](ProductSpec& s) { s.m = s.lda = 16; }));
}

}  // namespace
}  // namespace mica::cpu
