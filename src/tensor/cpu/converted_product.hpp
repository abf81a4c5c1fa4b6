// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "products.hpp"

namespace mica::cpu {

/// A product computed in f32, for dtypes that oneDNN cannot multiply, or only slowly. A is converted whole, B and C in parts, so that the
/// scratch stays small compared with the operands. [Note: converted product]
/// A part of B is some of its columns, or some of its rows where columns are long: input gradients of a head. A part of C is summed in f32
/// and rounded once. Parts have hundreds of columns and rows, but for the last ones: oneDNN is slow with few.
class ConvertedProduct final : public Product {
 public:
  /// @param products  makes the f32 products of the parts
  ConvertedProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override { return scratch_bytes_; }
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  /// C's rows [row, row + rows) and columns [col, col + cols), summed over k's [first, first + depth).
  struct Part {
    std::int64_t row = 0, rows = 0, col = 0, cols = 0, first = 0, depth = 0;
    std::shared_ptr<const Product> product;
  };
  [[nodiscard]] ProductSpec part_spec(const Part& part) const;
  /// B of a part.
  [[nodiscard]] const float* convert_b(const void* b, const Part& part, float* scratch) const;

  ProductSpec spec_;
  std::int64_t lda_;         // of A in f32
  std::vector<Part> parts_;  // those with the same B follow each other, from row 0 on
  // Offsets in the scratch; what is not needed has no bytes.
  std::int64_t a_offset_ = 0, b_offset_ = 0, bias_offset_ = 0, c_offset_ = 0, inner_offset_ = 0, scratch_bytes_ = 0;
};

}  // namespace mica::cpu
