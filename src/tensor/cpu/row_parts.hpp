// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "products.hpp"

namespace mica::cpu {

/// Products over some rows of C after the other.
class RowParts {
 public:
  /// @param spec  the whole product, with the types and strides that a part's operands have
  /// @param rows  of a part, at most spec.m; the last part may have fewer
  /// @param products  makes the products of the parts
  RowParts(ProductSpec spec, std::int64_t rows, Products& products);
  /// Of the largest part.
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  /// That any part needs.
  [[nodiscard]] std::int64_t scratch_bytes() const { return std::max(part_->scratch_bytes(), last_->scratch_bytes()); }
  /// run(first, rows, product) for each part.
  template <class Run>
  void for_each(Run run) const {
    for (std::int64_t first = 0; first < total_; first += rows_) {
      const std::int64_t rows = std::min(rows_, total_ - first);
      run(first, rows, rows == rows_ ? *part_ : *last_);
    }
  }

 private:
  std::int64_t total_, rows_;
  std::shared_ptr<const Product> part_, last_;
};

}  // namespace mica::cpu
