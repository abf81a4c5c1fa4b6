// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "products.hpp"

namespace mica::cpu {

/// A product of bf16 with a transposed A whose stored rows are not dense, as is the weight gradient of a head's chunk: some of their
/// columns at a time are transposed into scratch. With AMX, oneDNN 2 has a kernel only for dense rows, and takes twice as long for others.
class TransposingProduct final : public Product {
 public:
  [[nodiscard]] static bool suits(const ProductSpec& spec);
  /// @param products  makes the products of the slices
  TransposingProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  [[nodiscard]] ProductSpec slice_spec(std::int64_t rows) const;
  [[nodiscard]] std::int64_t slice_bytes() const;

  ProductSpec spec_;
  std::int64_t slice_rows_;  // of C
  std::shared_ptr<const Product> slice_;
  std::shared_ptr<const Product> last_slice_;  // m need not divide
};

}  // namespace mica::cpu
