// SPDX-License-Identifier: Apache-2.0
#include "row_parts.hpp"

namespace mica::cpu {

RowParts::RowParts(ProductSpec spec, std::int64_t rows, Products& products) : total_(spec.m), rows_(rows) {
  spec.m = rows;
  part_ = products.find(spec);
  const std::int64_t rest = total_ % rows;
  if (rest != 0) spec.m = rest;
  last_ = products.find(spec);
}

}  // namespace mica::cpu
