// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/host_math.hpp"

#include "mica/core/error.hpp"

#include "cpu/loops.hpp"

namespace mica {
namespace {
void require_arithmetic(DType dtype, const char* operation) {
  require<ConfigError>(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "{} of {} elements: expected fp32, bf16 or fp16",
                       operation, dtype_name(dtype));
}
}  // namespace

void fold_sum(std::span<const void* const> sources, void* dst, std::int64_t numel, DType dtype) {
  require_arithmetic(dtype, "sum");
  cpu::loops().fold_sum(dtype, sources.data(), static_cast<std::int64_t>(sources.size()), dst, 0, numel);
}

void fold_max(std::span<const void* const> sources, void* dst, std::int64_t numel, DType dtype) {
  require_arithmetic(dtype, "maximum");
  invariant(!sources.empty(), "a maximum over at least one source");
  cpu::loops().fold_max(dtype, sources.data(), static_cast<std::int64_t>(sources.size()), dst, 0, numel);
}

void convert(const void* src, DType src_dtype, void* dst, DType dst_dtype, std::int64_t numel) {
  require<ConfigError>(can_convert(src_dtype, dst_dtype), "conversion of {} to {} elements: expected fp32, bf16, fp16, moment8 or square8",
                       dtype_name(src_dtype), dtype_name(dst_dtype));
  cpu::loops().convert(src, src_dtype, dst, dst_dtype, 0, numel);
}

}  // namespace mica
