// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "mica/tensor/kernels.hpp"

namespace mica {

/// One plain oneDNN matrix product, for mica-bench to compare with: row-major matrices, all of one dtype, no bias.
/// Made for the OpenMP thread count set at that time.
class RawProduct {
 public:
  virtual ~RawProduct() = default;
  /// A [m,k] (stored [k,m] if transposed), B [k,n] (or [n,k]), C [m,n], all of the shape's dtype.
  virtual void run(const void* a, const void* b, void* c) = 0;
};

/// Null: this processor has no instructions for the dtype, and Mica's kernels compute in fp32.
/// @param gap  elements between the rows of C: with some, oneDNN 2 takes another kernel. [Note: dense operands]
[[nodiscard]] std::unique_ptr<RawProduct> make_raw_product(const ProductShape& shape, std::int64_t gap = 0);

}  // namespace mica
