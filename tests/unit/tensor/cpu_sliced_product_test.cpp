// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "../../../src/tensor/cpu/sliced_product.hpp"
#include "product_testing.hpp"

// Also where oneDNN would not read B in place: a product with AVX-512 is as right.
namespace mica::cpu {
namespace {

constexpr std::int64_t kMostColumns = 512;  // of a slice

/// Products with and without all that a product can have, one of whose extents is `extent`.
std::vector<ProductSpec> products_of(std::int64_t ProductSpec::*extent, std::int64_t size) {
  std::vector<ProductSpec> specs;
  for (int flags = 0; flags < 16; ++flags) {
    ProductSpec s{.m = 17, .n = 15, .k = 9};
    s.*extent = size;
    s.transposed_a = (flags & 1) != 0;
    s.transposed_b = (flags & 2) != 0;
    s.accumulate = (flags & 4) != 0;
    if ((flags & 8) != 0) s.bias = DType::f32;
    s.lda = (s.transposed_a ? s.m : s.k) + 3;
    s.ldb = (s.transposed_b ? s.k : s.n) + 2;
    s.ldc = s.n + 5;
    specs.push_back(s);
  }
  return specs;
}

// One slice, two, three; the last with fewer columns or rows.
TEST(SlicedProduct, IsTheProductOfItsSlices) {
  constexpr std::int64_t kSlice = 64;
  Products products(true);
  for (const auto extent : {&ProductSpec::n, &ProductSpec::m}) {
    for (const std::int64_t size : {kSlice, kSlice + 1, 2 * kSlice, 2 * kSlice + 27}) {
      for (const ProductSpec& spec : products_of(extent, size)) {
        const SlicedProduct product(spec, extent, kSlice, products);
        expect_exact(product, spec);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(SlicedProduct, FewColumnsAreOneSlice) {
  Products products(true);
  for (const std::int64_t n : {std::int64_t{1}, kMostColumns, kMostColumns + 1}) {
    for (const ProductSpec& spec : products_of(&ProductSpec::n, n)) {
      const SlicedProduct product(spec, products);
      expect_exact(product, spec);
      if (HasFatalFailure()) return;
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
