// SPDX-License-Identifier: Apache-2.0
#include "mica/core/dtype.hpp"

#include <array>
#include <utility>

#include "mica/core/error.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "Mica needs NaN and infinity, or it would not see a loss that diverges: compile without -ffast-math, -Ofast, -ffinite-math-only"
#endif

namespace mica {
namespace {
constexpr std::array<std::pair<DType, std::string_view>, 10> kNames{{{DType::f32, "fp32"},
                                                                     {DType::bf16, "bf16"},
                                                                     {DType::f16, "fp16"},
                                                                     {DType::f64, "fp64"},
                                                                     {DType::i64, "int64"},
                                                                     {DType::i32, "int32"},
                                                                     {DType::u16, "uint16"},
                                                                     {DType::u8, "uint8"},
                                                                     {DType::moment8, "moment8"},
                                                                     {DType::square8, "square8"}}};
}

std::string_view dtype_name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

DType dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  throw ConfigError(
      fmt::format("unknown dtype '{}', expected fp32, bf16, fp16, fp64, int64, int32, uint16, uint8, moment8 or square8", name));
}

}  // namespace mica
