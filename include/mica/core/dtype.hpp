// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace mica {

/// Element types of tensors and files. moment8 and square8 are an optimizer's 8-bit codes ([Note: 8-bit moments],
/// src/tensor/moment_codes.hpp).
enum class DType : std::uint8_t { f32, bf16, f16, f64, i64, i32, u16, u8, moment8, square8 };

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
    case DType::moment8:
    case DType::square8:
      return 1;
  }
  return 0;
}

[[nodiscard]] constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

/// "fp32", "bf16", ...: the names of config files and checkpoints.
[[nodiscard]] std::string_view dtype_name(DType dtype);

/// Inverse of dtype_name. @throws ConfigError that lists the known names.
[[nodiscard]] DType dtype_from_name(std::string_view name);

}  // namespace mica
