// SPDX-License-Identifier: Apache-2.0
#include "dense_parts.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"

#include "deep_product.hpp"
#include "sliced_product.hpp"

namespace mica::cpu {

namespace {

constexpr std::int64_t kLarge = 512, kManyTokens = 128;  // smaller products were not measured
constexpr std::int64_t kColumnsOfPart = 1024, kRowsOfPart = 768;

bool is_dense(const ProductSpec& s) {
  return s.lda == (s.transposed_a ? s.m : s.k) && s.ldb == (s.transposed_b ? s.k : s.n) && s.ldc == s.n;
}

/// At most `most`, and not the whole extent.
std::int64_t part_of(std::int64_t extent, std::int64_t most) { return round_up(even_part(extent, std::min(most, extent / 2)), 16); }

}  // namespace

DenseParts faster_parts(const ProductSpec& s) {
  if (!is_dense(s) || s.transposed_b || s.bias || s.n < kLarge) return DenseParts::none;
  if (s.a != DType::f32) return DenseParts::none;
  if (s.transposed_a) {
    return s.m >= kLarge && s.k >= kManyTokens && s.n > kColumnsOfPart ? DenseParts::rows : DenseParts::none;
  }
  if (s.m < kManyTokens || s.k < kLarge) return DenseParts::none;
  if (s.n > kColumnsOfPart) return DenseParts::columns;
  return s.k > DeepProduct::kMostDepth ? DenseParts::depth : DenseParts::none;
}

std::unique_ptr<Product> make_of_dense_parts(const ProductSpec& spec, DenseParts parts, Products& products) {
  switch (parts) {
    case DenseParts::rows:
      return std::make_unique<SlicedProduct>(spec, &ProductSpec::m, part_of(spec.m, kRowsOfPart), products);
    case DenseParts::columns:
      return std::make_unique<SlicedProduct>(spec, &ProductSpec::n, part_of(spec.n, kColumnsOfPart), products);
    case DenseParts::depth:
      return std::make_unique<DeepProduct>(spec, products);
    case DenseParts::none:
      break;
  }
  return nullptr;
}

}  // namespace mica::cpu
