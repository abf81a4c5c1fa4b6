#pragma once

#include <cstdint>
#include <string>

#include "mica/core/dtype.hpp"

namespace mica::cuda {

/// What happens beside the product itself.
enum class Epilogue : std::uint8_t {
  none,
  bias,           ///< a vector [n] of C's dtype is added to every row of C
  bias_gradient,  ///< the sums of op(A)'s rows over k are written to a vector [m] of C's dtype
};

/// Bytes, at most 16, that divide the address of each operand and of the epilogue's vector. [Note: alignment of
/// products] Not more than 16, although cuBLASLt could be told: which algorithm it chooses, and with it the result's
/// bits, may depend on the shape of a model but not on where the pool put a buffer.
struct Alignments {
  int a = 16, b = 16, c = 16, vector = 16;
  static Alignments of(const void* a, const void* b, const void* c, const void* vector) {
    return {bytes_dividing(a), bytes_dividing(b), bytes_dividing(c), bytes_dividing(vector)};
  }
  friend bool operator==(const Alignments&, const Alignments&) = default;

 private:
  static int bytes_dividing(const void* address) {
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(address) | 16;
    return static_cast<int>(bits & (~bits + 1));
  }
};

/// C[m,n] (+)= A[m,k] B[k,n], all row-major. A transposed operand is stored as [k,m] (A) or [n,k] (B).
struct ProductSpec {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between two stored rows
  bool transposed_a = false, transposed_b = false;
  DType ab = DType::f32, c = DType::f32;  // c: f32 or A's and B's
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;
  Alignments alignment{};

  friend bool operator==(const ProductSpec&, const ProductSpec&) = default;
  /// "[1024,768] x [768,2304]^T bf16 -> += f32, with a bias"
  [[nodiscard]] std::string to_string() const;
};

}  // namespace mica::cuda
