// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "depth_parts.hpp"

namespace mica::cpu {

/// A product of few rows with a B whose rows lie a multiple of 1 KiB apart, so that they compete for the same lines of a first-level cache:
/// some of B's rows at a time are copied to where they do not. [Note: rows 1 KiB apart]
/// Without AVX-512 oneDNN 2 reads the B of such a product in place, at half its speed with 4 KiB, 0.7 of it with 2 and 0.9 with 1. Those
/// are input gradients of layers with 512, 768, 1,024 ... inputs, of up to 280 rows or some more: small micro-batches, and the head's
/// chunks.
class RespacedProduct final : public Product {
 public:
  [[nodiscard]] static bool suits(const ProductSpec& spec);
  /// @param products  makes the products of the slices
  RespacedProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  [[nodiscard]] std::int64_t slice_bytes() const;

  ProductSpec spec_;
  std::int64_t ldb_;  // of a slice
  DepthParts slices_;
};

}  // namespace mica::cpu
