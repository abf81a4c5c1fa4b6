// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "mica/core/dtype.hpp"

namespace mica {

/// Math on host memory that needs neither a stream nor Kernels: for process groups and file conversion.
/// Single-threaded, fast (the CPU's vector loops), the same bits for every split of the range and on every processor.
/// Pointers may have any alignment. Dtypes: f32, bf16, f16; convert() also moment8 and square8. @throws ConfigError for others.

/// dst[i] = sum over `sources` of source[i], folded from the left in the order given, in f32, rounded to dtype once.
/// dst may be one of the sources (with equal offsets). No sources: zeros.
void fold_sum(std::span<const void* const> sources, void* dst, std::int64_t numel, DType dtype);

/// dst[i] = maximum over `sources` (at least one) of source[i]; NaN in any of them gives NaN.
void fold_max(std::span<const void* const> sources, void* dst, std::int64_t numel, DType dtype);

/// dst[i] = src[i], rounded to nearest even; NaN stays NaN (not all dtypes have infinity). Equal dtypes copy bytes, and may be any dtype
/// then.
void convert(const void* src, DType src_dtype, void* dst, DType dst_dtype, std::int64_t numel);

/// Whether convert(), and kernels that copy, accept these dtypes.
[[nodiscard]] constexpr bool can_convert(DType from, DType to) {
  const auto is_cast = [](DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::moment8 || dtype == DType::square8;
  };
  return from == to || (is_cast(from) && is_cast(to));
}

}  // namespace mica
