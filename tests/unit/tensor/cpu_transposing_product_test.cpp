// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/onednn_product.hpp"
#include "../../../src/tensor/cpu/pair_tiles.hpp"
#include "../../../src/tensor/cpu/transposing_product.hpp"
#include "product_testing.hpp"

namespace mica::cpu {
namespace {

/// A weight gradient of k rows, which lie in wider ones.
ProductSpec gradient_of(std::int64_t m, std::int64_t n, std::int64_t k, DType c) {
  return {
      .m = m, .n = n, .k = k, .lda = m + 5, .ldb = n + 3, .ldc = n + 1, .transposed_a = true, .a = DType::bf16, .b = DType::bf16, .c = c};
}

TEST(TransposingProduct, IsThatOfItsSlices) {
  if (pair_tiles() == nullptr) {
    EXPECT_FALSE(TransposingProduct::suits(gradient_of(64, 64, 64, DType::bf16)));
    return;
  }
  Products products(true);
  struct Size {
    std::int64_t m, n, k;
  };
  // One slice; of rows and columns that fill no block; two, the last one shorter; three.
  for (const Size& size : {Size{64, 32, 32}, {65, 33, 47}, {41, 5, 37}, {2100, 5, 1030}, {4200, 3, 1029}}) {
    for (const bool accumulate : {false, true}) {
      for (const DType c : {DType::f32, DType::bf16}) {
        ProductSpec spec = gradient_of(size.m, size.n, size.k, c);
        spec.accumulate = accumulate;
        const TransposingProduct product(spec, products);
        expect_exact(product, spec);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TransposingProduct, SuitsWeightGradientsOfChunksInBf16WithAmx) {
  const ProductSpec gradient = gradient_of(768, 3072, 1024, DType::bf16);
  const bool is_faster = TransposingProduct::suits(gradient);  // here: with AMX and oneDNN 2
  EXPECT_TRUE(!is_faster || onednn_uses(dnnl::cpu_isa::avx512_core_amx));
  const auto suits = [&](auto change) {
    ProductSpec s = gradient;
    change(s);
    return TransposingProduct::suits(s);
  };
  EXPECT_EQ(suits([](ProductSpec& s) { s.c = DType::f32; }), is_faster);
  EXPECT_EQ(suits([](ProductSpec& s) { s.accumulate = true; }), is_faster);
  EXPECT_EQ(suits([](ProductSpec& s) { s.m = s.n = s.k = 32; }), is_faster);
  EXPECT_FALSE(suits([](ProductSpec& s) { s.lda = s.m; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.m = 31; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.n = 31; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.k = 31; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.transposed_a = false; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.bias = DType::bf16; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.c = DType::f16; }));
  EXPECT_FALSE(suits([](ProductSpec& s) { s.a = s.b = s.c = DType::f32; }));
}

}  // namespace
}  // namespace mica::cpu
