// SPDX-License-Identifier: Apache-2.0
#include "depth_parts.hpp"

#include "mica/core/rounding.hpp"

namespace mica::cpu {

DepthParts::DepthParts(ProductSpec spec, std::int64_t most, Products& products) : total_(spec.k), depth_(even_part(spec.k, most)) {
  spec.k = depth_;
  first_ = products.find(spec);
  spec.accumulate = true;
  next_ = products.find(spec);
  spec.k = total_ - (divide_up(total_, depth_) - 1) * depth_;
  last_ = products.find(spec);
}

const Product& DepthParts::product_of(std::int64_t first, std::int64_t depth) const {
  return first == 0 ? *first_ : depth == depth_ ? *next_ : *last_;
}

std::int64_t DepthParts::scratch_bytes() const {
  return std::max({first_->scratch_bytes(), next_->scratch_bytes(), last_->scratch_bytes()});
}

}  // namespace mica::cpu
