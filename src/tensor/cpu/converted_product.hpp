// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "products.hpp"

namespace mica::cpu {

/// A product computed in f32, for dtypes that oneDNN cannot multiply, or only slowly. A is converted whole, B and C in slices
/// of columns, so that the scratch stays small compared with the operands. [Note: converted product]
class ConvertedProduct final : public Product {
 public:
  /// @param products  makes the f32 products of the slices.
  ConvertedProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override { return scratch_bytes_; }
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  [[nodiscard]] ProductSpec slice_spec(std::int64_t cols) const;
  [[nodiscard]] const float* convert_b(const void* b, std::int64_t begin, std::int64_t cols, float* scratch) const;

  ProductSpec spec_;
  std::int64_t slice_cols_ = 0;
  const Product* slice_ = nullptr;
  const Product* last_slice_ = nullptr;  // n need not divide
  // Offsets in the scratch; a part that is not needed has no bytes.
  std::int64_t a_offset_ = 0, b_offset_ = 0, bias_offset_ = 0, c_offset_ = 0, inner_offset_ = 0, scratch_bytes_ = 0;
};

}  // namespace mica::cpu
