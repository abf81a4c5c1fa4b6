// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/core/dtype.hpp"

namespace mica::cuda {

/// Operations fused with the product.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< a vector [n] of C's dtype is added to every row of C
  gelu,       ///< C = gelu(A B)
  gelu_bias,  ///< C = gelu(A B + bias)
  gelu_aux,   ///< these two, and the GELU's input is written to a second matrix, rounded to C's dtype
  gelu_aux_bias,
  gelu_gradient,  ///< C = (A B) * gelu'(second matrix)
};

[[nodiscard]] constexpr bool has_vector(Epilogue epilogue) {
  return epilogue == Epilogue::bias || epilogue == Epilogue::gelu_bias || epilogue == Epilogue::gelu_aux_bias;
}
/// A second matrix of C's shape, leading dim and dtype: cuBLASLt's "epilogue auxiliary buffer".
[[nodiscard]] constexpr bool has_aux(Epilogue epilogue) {
  return epilogue == Epilogue::gelu_aux || epilogue == Epilogue::gelu_aux_bias || epilogue == Epilogue::gelu_gradient;
}
[[nodiscard]] constexpr const char* epilogue_text(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return "";
    case Epilogue::bias:
      return " with a bias";
    case Epilogue::gelu:
    case Epilogue::gelu_aux:
      return " with a GELU";
    case Epilogue::gelu_bias:
    case Epilogue::gelu_aux_bias:
      return " with a bias and a GELU";
    case Epilogue::gelu_gradient:
      return " with a GELU's gradient";
  }
  return "";
}

/// Alignment in bytes, at most 16, of each operand and of the epilogue's vector and second matrix. [Note: alignment of
/// products] At most 16, although cuBLASLt could use more: which algorithm it chooses, and so the result's bits, may
/// depend on a model's shape, but not on a buffer's address.
struct Alignments {
  int a = 16, b = 16, c = 16, vector = 16, aux = 16;
  static Alignments of(const void* a, const void* b, const void* c, const void* vector, const void* aux = nullptr) {
    return {bytes_dividing(a), bytes_dividing(b), bytes_dividing(c), bytes_dividing(vector), bytes_dividing(aux)};
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
  /// "[1024,768] x [2304,768]^T bf16"
  [[nodiscard]] std::string operands_text() const;
  /// "[1024,768] x [2304,768]^T bf16 -> += fp32 with a bias, leading dims 768, ..."
  [[nodiscard]] std::string to_string() const;
};

}  // namespace mica::cuda
