// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "mica/core/dtype.hpp"

namespace mica {

/// bfloat16: the upper half of an fp32; conversion rounds to nearest, ties to even, and keeps NaN a NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    bits = static_cast<std::uint16_t>(is_nan ? ((u >> 16) | 0x40U) : rounded);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE half precision; conversion rounds to nearest, ties to even; overflow becomes infinity.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit f16(float value) : bits(from_float(value)) {}
  explicit operator float() const { return to_float(bits); }

 private:
  static std::uint16_t from_float(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000U;
    const std::uint32_t magnitude = u & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
    if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
    if (magnitude < 0x38800000U) {  // subnormal in fp16: adding 0.5 aligns the mantissa and rounds to even
      const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
      return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000U));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13));
  }
  static float to_float(std::uint16_t h) {
    const std::uint32_t sign = (h & 0x8000U) << 16;
    const std::uint32_t exponent = (h >> 10) & 0x1fU;
    const std::uint32_t mantissa = h & 0x3ffU;
    if (exponent == 0) {
      const float value = static_cast<float>(mantissa) * 0x1p-24F;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace mica
