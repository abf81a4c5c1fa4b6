// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "product_parts.hpp"
#include "products.hpp"

namespace mica::cpu {

/// A product of bf16 whose sums are made in f32, some rows of C at a time, and then rounded to C's bf16. [Note: rounded product]
/// For shapes at which oneDNN would keep a whole C in f32 for each thread, as it does for a head's weight gradient: 31 GB with 50,304
/// classes, a width of 1,600 and 96 threads.
class RoundedProduct final : public Product {
 public:
  /// Whether a product is better made this way. @param scratch_bytes  what oneDNN would take for it
  [[nodiscard]] static bool suits(const ProductSpec& spec, std::int64_t scratch_bytes);
  /// @param products  makes the products of the parts
  RoundedProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  ProductSpec spec_;
  ProductParts parts_;
};

}  // namespace mica::cpu
