// SPDX-License-Identifier: Apache-2.0
#include "deep_product.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"

#include "product_rows.hpp"

namespace mica::cpu {

namespace {

constexpr std::int64_t kMostDepth = 1024;
/// oneDNN may take as many times the bytes of C, or of so many bytes.
constexpr std::int64_t kMostCopies = 4, kSmallC = 16 << 20;

}  // namespace

bool DeepProduct::suits(const ProductSpec& s, std::int64_t scratch_bytes) {
  return s.c == DType::f32 && !s.bias && s.k > kMostDepth && scratch_bytes >= kMostCopies * std::max(kSmallC, 4 * s.m * s.n);
}

DeepProduct::DeepProduct(const ProductSpec& spec, Products& products) : spec_(spec), depth_(even_part(spec.k, kMostDepth)) {
  const std::int64_t rest = spec.k - (divide_up(spec.k, depth_) - 1) * depth_;
  first_ = &products.find(part_spec(depth_, spec.accumulate));
  next_ = &products.find(part_spec(depth_, true));
  last_ = &products.find(part_spec(rest, true));
}

ProductSpec DeepProduct::part_spec(std::int64_t depth, bool accumulate) const {
  ProductSpec s = spec_;
  s.k = depth;
  s.accumulate = accumulate;
  return s;
}

std::int64_t DeepProduct::scratch_bytes() const {
  return std::max({first_->scratch_bytes(), next_->scratch_bytes(), last_->scratch_bytes()});
}

void DeepProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  for (std::int64_t begin = 0; begin < spec_.k; begin += depth_) {
    const Product& product = begin == 0 ? *first_ : spec_.k - begin >= depth_ ? *next_ : *last_;
    product.run(element_at(a, spec_.a, spec_.transposed_a ? begin * spec_.lda : begin),
                element_at(b, spec_.b, spec_.transposed_b ? begin : begin * spec_.ldb), nullptr, c, scratch);
  }
}

}  // namespace mica::cpu
