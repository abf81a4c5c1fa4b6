// SPDX-License-Identifier: Apache-2.0
#include "rounded_product.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"

#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// Bytes of f32 sums that stay in a cache until they are rounded, and the fewest rows of C for a product.
constexpr std::int64_t kSumBytes = 4 << 20, kFewestRows = 32;
/// A product of oneDNN may take less scratch than this, whatever its shape.
constexpr std::int64_t kMostScratch = 16 << 20;

std::int64_t sum_bytes(const ProductSpec& spec, std::int64_t rows) { return round_up(4 * rows * spec.n, 64); }

std::int64_t rows_of_sums(const ProductSpec& spec) {
  return std::min(spec.m, std::max(kFewestRows, round_down(kSumBytes / (4 * spec.n), kFewestRows)));
}

/// The product whose C are the sums.
ProductSpec with_dense_sums(ProductSpec spec) {
  spec.c = DType::f32;
  spec.ldc = spec.n;
  spec.accumulate = false;
  return spec;
}

}  // namespace

bool RoundedProduct::suits(const ProductSpec& s, std::int64_t scratch_bytes) {
  return s.c == DType::bf16 && !s.bias && scratch_bytes >= std::max(kMostScratch, sum_bytes(s, s.m));
}

RoundedProduct::RoundedProduct(const ProductSpec& spec, Products& products)
    : spec_(spec), parts_(with_dense_sums(spec), &ProductSpec::m, rows_of_sums(spec), products) {}

std::int64_t RoundedProduct::scratch_bytes() const { return sum_bytes(spec_, parts_.size()) + parts_.scratch_bytes(); }

void RoundedProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  auto* const sums = static_cast<float*>(scratch);
  std::byte* const inner = static_cast<std::byte*>(scratch) + sum_bytes(spec_, parts_.size());
  parts_.for_each([&](std::int64_t first, std::int64_t rows, const Product& product) {
    product.run(element_at(a, spec_.a, spec_.transposed_a ? first : first * spec_.lda), b, nullptr, sums, inner);
    round_rows(sums, rows, spec_.n, element_at(c, spec_.c, first * spec_.ldc), spec_.c, spec_.ldc, spec_.accumulate);
  });
}

}  // namespace mica::cpu
