// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/core/half.hpp"

#include "../../../src/tensor/cpu/products.hpp"

namespace mica::cpu {

/// A matrix of small integers, whose sums of many thousand products are exact in floats.
class IntegerMatrix {
 public:
  IntegerMatrix(std::int64_t rows, std::int64_t ld, DType dtype, std::int64_t modulus)
      : dtype_(dtype), floats_(static_cast<std::size_t>(rows * ld)) {
    const std::int64_t middle = modulus / 2;
    for (std::size_t i = 0; i < floats_.size(); ++i) floats_[i] = static_cast<float>(static_cast<std::int64_t>(i) * 7 % modulus - middle);
    for (const float value : floats_) halves_.emplace_back(value);
  }
  [[nodiscard]] void* data() { return dtype_ == DType::f32 ? static_cast<void*>(floats_.data()) : static_cast<void*>(halves_.data()); }
  [[nodiscard]] float at(std::int64_t i) const {
    const auto index = static_cast<std::size_t>(i);
    return dtype_ == DType::f32 ? floats_[index] : static_cast<float>(halves_[index]);
  }

 private:
  DType dtype_;
  std::vector<float> floats_;
  std::vector<bf16> halves_;
};

/// Runs a product of integers: each sum is exact and rounded once, and nothing is written beside C and the scratch memory.
inline void expect_exact(const Product& product, const ProductSpec& s) {
  IntegerMatrix a(s.transposed_a ? s.k : s.m, s.lda, s.a, 11), b(s.transposed_b ? s.n : s.k, s.ldb, s.b, 13);
  IntegerMatrix bias(1, s.n, s.bias.value_or(DType::f32), 5), c(s.m, s.ldc, s.c, 17);
  const IntegerMatrix before = c;
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kUnwritten{0x5a};
  const auto size = static_cast<std::size_t>(product.scratch_bytes());
  std::vector<std::byte> scratch(size + 2 * kGuard, kUnwritten);
  void* aligned = scratch.data();
  std::size_t space = size + kGuard;
  ASSERT_NE(std::align(kGuard, size, aligned, space), nullptr);
  product.run(a.data(), b.data(), s.bias ? bias.data() : nullptr, c.data(), aligned);
  for (auto* byte = static_cast<std::byte*>(aligned) + size; byte != scratch.data() + scratch.size(); ++byte) {
    ASSERT_EQ(*byte, kUnwritten) << "behind the scratch memory of " << s.to_string();
  }
  for (std::int64_t row = 0; row < s.m; ++row) {
    for (std::int64_t col = 0; col < s.ldc; ++col) {
      const std::int64_t here = row * s.ldc + col;
      if (col >= s.n) {
        ASSERT_EQ(c.at(here), before.at(here)) << "beside C, of " << s.to_string();
        continue;
      }
      float sum = s.bias ? bias.at(col) : 0;
      for (std::int64_t i = 0; i < s.k; ++i) {
        sum += a.at(s.transposed_a ? i * s.lda + row : row * s.lda + i) * b.at(s.transposed_b ? col * s.ldb + i : i * s.ldb + col);
      }
      if (s.accumulate) sum += before.at(here);
      ASSERT_EQ(c.at(here), s.c == DType::f32 ? sum : static_cast<float>(bf16(sum))) << row << " " << col << " of " << s.to_string();
    }
  }
}

}  // namespace mica::cpu
