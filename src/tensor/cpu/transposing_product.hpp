// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "product_parts.hpp"
#include "products.hpp"

namespace mica::cpu {

/// A product of bf16 with a transposed A whose stored rows are not dense, as is the weight gradient of a head's chunk: some of their
/// columns at a time are transposed into scratch. With AMX, oneDNN 2 has a kernel only for dense rows, and takes twice as long for others.
class TransposingProduct final : public Product {
 public:
  [[nodiscard]] static bool suits(const ProductSpec& spec);
  /// @param products  makes the products of the parts
  TransposingProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  [[nodiscard]] std::int64_t transposed_bytes() const;

  ProductSpec spec_;
  ProductParts parts_;
};

}  // namespace mica::cpu
