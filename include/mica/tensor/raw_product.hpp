#pragma once

#include <cstdint>
#include <memory>

#include "mica/tensor/kernels.hpp"

namespace mica {

/// One matrix product by oneDNN and nothing else, for mica-bench to compare with: plain row-major matrices without gaps,
/// C as A and B are, no bias. For the OpenMP thread count that is set when it is made.
class RawProduct {
 public:
  virtual ~RawProduct() = default;
  /// A [m,k] (stored [k,m] if transposed), B [k,n] (or [n,k]), C [m,n], all of the shape's dtype.
  virtual void run(const void* a, const void* b, void* c) = 0;
};

/// @throws Error if oneDNN cannot make it (bf16 on a processor without the instructions).
[[nodiscard]] std::unique_ptr<RawProduct> make_raw_product(const ProductShape& shape);

}  // namespace mica
