// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "products.hpp"

namespace mica::cpu {

/// Products over some rows, or some columns, of C after the other.
class ProductParts {
 public:
  /// @param spec  the whole product, with the types and strides that a part's operands have
  /// @param extent  &ProductSpec::m for parts of rows, &ProductSpec::n for parts of columns
  /// @param size  rows or columns of a part, at most the whole product's; the last part may have fewer
  /// @param products  makes the products of the parts
  ProductParts(ProductSpec spec, std::int64_t ProductSpec::*extent, std::int64_t size, Products& products);
  /// Of the largest part.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// That any part needs.
  [[nodiscard]] std::int64_t scratch_bytes() const { return std::max(part_->scratch_bytes(), last_->scratch_bytes()); }
  /// run(first, size, product) for each part.
  template <class Run>
  void for_each(Run run) const {
    for (std::int64_t first = 0; first < total_; first += size_) {
      const std::int64_t size = std::min(size_, total_ - first);
      run(first, size, size == size_ ? *part_ : *last_);
    }
  }

 private:
  std::int64_t total_, size_;
  std::shared_ptr<const Product> part_, last_;
};

}  // namespace mica::cpu
