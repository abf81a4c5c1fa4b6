// SPDX-License-Identifier: Apache-2.0
#include "deep_product.hpp"

#include <algorithm>

#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// oneDNN may take as many times the bytes of C, or of so many bytes.
constexpr std::int64_t kMostCopies = 4, kSmallC = 16 << 20;

}  // namespace

bool DeepProduct::suits(const ProductSpec& s, std::int64_t scratch_bytes) {
  return s.c == DType::f32 && !s.bias && s.k > kMostDepth && scratch_bytes >= kMostCopies * std::max(kSmallC, 4 * s.m * s.n);
}

DeepProduct::DeepProduct(const ProductSpec& spec, Products& products) : spec_(spec), parts_(spec, kMostDepth, products) {}

void DeepProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  parts_.for_each([&](std::int64_t first, std::int64_t /*depth*/, const Product& product) {
    product.run(element_at(a, spec_.a, spec_.transposed_a ? first * spec_.lda : first),
                element_at(b, spec_.b, spec_.transposed_b ? first : first * spec_.ldb), nullptr, c, scratch);
  });
}

}  // namespace mica::cpu
