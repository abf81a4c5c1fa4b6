#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "mica/core/dtype.hpp"

namespace mica::cuda {

/// What happens beside the product itself.
enum class Epilogue : std::uint8_t {
  none,
  bias,           ///< a vector [n] of C's dtype is added to every row of C
  bias_gradient,  ///< the sums of op(A)'s rows over k are written to a vector [m] of C's dtype
};

/// C[m,n] (+)= A[m,k] B[k,n], all row-major. A transposed operand is stored as [k,m] (A) or [n,k] (B).
struct ProductSpec {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between two stored rows
  bool transposed_a = false, transposed_b = false;
  DType ab = DType::f32, c = DType::f32;  // c: f32 or A's and B's
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;
  int alignment = 16;  // bytes that divide all addresses, at most 16

  friend bool operator==(const ProductSpec&, const ProductSpec&) = default;
  /// "[1024,768] x [768,2304]^T bf16 -> += f32, with a bias"
  [[nodiscard]] std::string to_string() const;
};

/// Bytes, at most 16, that divide all addresses. [Note: alignment of products] Not more than 16, although cuBLASLt
/// could be told: which algorithm it chooses, and with it the result's bits, may depend on the shape of a model but not
/// on where the pool put a buffer.
[[nodiscard]] int common_alignment(std::initializer_list<const void*> addresses);

}  // namespace mica::cuda
