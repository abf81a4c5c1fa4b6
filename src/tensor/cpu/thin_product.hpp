// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "products.hpp"

namespace mica::cpu {

/// y = x w^T for a few rows of x, as in text generation. [Note: thin products]
/// Such a product takes the time in which its weights come from memory. Each is read once, in the dtype and order in which it
/// lies, for all rows; sums are f32. (A library packs w first, as is right for many rows: that alone moves several times its
/// bytes.) Products of bf16 with bf16 use the instructions that PairTiles has, where they are. A row's bits depend neither on the other
/// rows nor on the number of threads.
class ThinProduct final : public Product {
 public:
  /// Whether a product is one that is faster this way.
  [[nodiscard]] static bool suits(const ProductSpec& spec);
  explicit ThinProduct(const ProductSpec& spec) : spec_(spec) {}
  [[nodiscard]] std::int64_t scratch_bytes() const override;
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  ProductSpec spec_;
};

}  // namespace mica::cpu
