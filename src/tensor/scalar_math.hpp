// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "mica/core/host_device.hpp"

namespace mica {

/// The `Math` of element_math.hpp, optimizer_math.hpp and [Note: normal numbers] for one number at a time, on any device
/// (for vectors: cpu/isa/math.hpp).
struct ScalarMath {
  using Float = float;
  using Word = std::uint32_t;
  MICA_HOST_DEVICE static Float exp(Float x) { return std::exp(x); }
  MICA_HOST_DEVICE static Float sqrt(Float x) { return std::sqrt(x); }
  MICA_HOST_DEVICE static Float fma(Float a, Float b, Float c) { return std::fma(a, b, c); }
  /// NaN stays NaN.
  MICA_HOST_DEVICE static Float at_least(float low, Float x) { return x < low ? low : x; }
  MICA_HOST_DEVICE static Float at_most(float high, Float x) { return x > high ? high : x; }
  /// Of a word below 2^31.
  MICA_HOST_DEVICE static Float to_float(Word w) { return static_cast<float>(static_cast<std::int32_t>(w)); }
  MICA_HOST_DEVICE static Word bits(Float x) { return std::bit_cast<Word>(x); }
  MICA_HOST_DEVICE static Float from_bits(Word w) { return std::bit_cast<Float>(w); }
};

}  // namespace mica
