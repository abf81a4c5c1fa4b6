// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "depth_parts.hpp"

namespace mica::cpu {

/// A product with sums in f32, over one part of the depth after the other. [Note: deep product]
/// In f32 with AVX-512, and in bf16 with AMX, oneDNN 2.6 may also divide the depth of a product among 16 threads and more, and then each of
/// them keeps sums of its own for all of C: 16 GiB for the gradient of 4,096 x 11,008 weights and 96 threads, 1.8 GiB for 1,600 x 6,400
/// and 48. It never does so with a depth of 1,024 or less.
class DeepProduct final : public Product {
 public:
  static constexpr std::int64_t kMostDepth = 1024;  ///< of a part
  /// Whether a product would take too much memory. @param scratch_bytes  what oneDNN would take for it
  [[nodiscard]] static bool suits(const ProductSpec& spec, std::int64_t scratch_bytes);
  /// @param products  makes the products of the parts
  DeepProduct(const ProductSpec& spec, Products& products);
  [[nodiscard]] std::int64_t scratch_bytes() const override { return parts_.scratch_bytes(); }
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  ProductSpec spec_;
  DepthParts parts_;
};

}  // namespace mica::cpu
