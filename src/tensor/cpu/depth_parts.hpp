// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "products.hpp"

namespace mica::cpu {

/// Products over one part of the depth after the other, whose sums add up in C.
class DepthParts {
 public:
  /// @param spec  the whole product, with the strides that a part's operands have
  /// @param most  of a part's depth; all parts but the last have the same
  /// @param products  makes the products of the parts
  DepthParts(ProductSpec spec, std::int64_t most, Products& products);
  [[nodiscard]] std::int64_t depth() const { return depth_; }
  /// That any part needs.
  [[nodiscard]] std::int64_t scratch_bytes() const;
  /// run(first, depth, product) for each part, in the order of the sum.
  template <class Run>
  void for_each(Run run) const {
    for (std::int64_t first = 0; first < total_; first += depth_) {
      const std::int64_t depth = std::min(depth_, total_ - first);
      run(first, depth, product_of(first, depth));
    }
  }

 private:
  [[nodiscard]] const Product& product_of(std::int64_t first, std::int64_t depth) const;

  std::int64_t total_, depth_;
  std::shared_ptr<const Product> first_, next_, last_;
};

}  // namespace mica::cpu
