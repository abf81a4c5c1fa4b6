// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "product_parts.hpp"
#include "products.hpp"

namespace mica::cpu {

/// A product over some columns of C after the other, or some rows.
/// Without AVX-512 oneDNN 2 reads the transposed B of a product of few rows in place, and takes 1.1 to 1.3 times as long for all columns at
/// once. Those are outputs of layers with 512 inputs or more, of up to 263 rows or some more: small micro-batches, and the logits of the
/// head's chunks. With two threads, which share the columns, slices gained nothing. For others see [Note: dense operands].
class SlicedProduct final : public Product {
 public:
  /// Whether a product is better made of slices of columns without AVX-512.
  [[nodiscard]] static bool suits(const ProductSpec& spec);
  /// Such a product. @param products  makes the products of the slices
  SlicedProduct(const ProductSpec& spec, Products& products);
  /// @param extent  &ProductSpec::m for slices of rows, &ProductSpec::n for slices of columns  @param size  of a slice
  SlicedProduct(const ProductSpec& spec, std::int64_t ProductSpec::*extent, std::int64_t size, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  ProductSpec spec_;
  bool has_slices_of_rows_;
  ProductParts slices_;
};

}  // namespace mica::cpu
