// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "product_parts.hpp"
#include "products.hpp"

namespace mica::cpu {

/// A product of few rows with a transposed B, over some columns of C after the other, and so over some of B's stored rows.
/// Without AVX-512 oneDNN 2 reads the B of such a product in place, and takes 1.1 to 1.3 times as long for all columns at once. Those are
/// outputs of layers with 512 inputs or more, of up to 263 rows or some more: small micro-batches, and the logits of the head's chunks.
/// With two threads, which share the columns, slices gained nothing.
class SlicedProduct final : public Product {
 public:
  [[nodiscard]] static bool suits(const ProductSpec& spec);
  /// @param products  makes the products of the slices
  SlicedProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  ProductSpec spec_;
  ProductParts slices_;
};

}  // namespace mica::cpu
