// SPDX-License-Identifier: Apache-2.0
#include "product_parts.hpp"

namespace mica::cpu {

ProductParts::ProductParts(ProductSpec spec, std::int64_t ProductSpec::*extent, std::int64_t size, Products& products)
    : total_(spec.*extent), size_(size) {
  spec.*extent = size;
  part_ = products.find(spec);
  const std::int64_t rest = total_ % size;
  if (rest != 0) spec.*extent = rest;
  last_ = products.find(spec);
}

}  // namespace mica::cpu
