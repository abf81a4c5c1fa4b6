// SPDX-License-Identifier: Apache-2.0
#include "converted_product.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"

#include "loops.hpp"
#include "parallel.hpp"
#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// f32 bytes of one slice of B or C.
constexpr std::int64_t kSliceBytes = 8 << 20;

/// dst[rows, cols] f32, dense = src rows of stride ld.
void convert_rows(const void* src, DType dtype, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* dst) {
  parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      loops().convert(element_at(src, dtype, row * ld), dtype, dst + row * cols, DType::f32, 0, cols);
    }
  });
}

}  // namespace

ConvertedProduct::ConvertedProduct(const ProductSpec& spec, Products& products) : spec_(spec) {
  const std::int64_t longest = std::max(spec.k, spec.m);
  slice_cols_ = std::clamp(round_down(kSliceBytes / (4 * longest), 64), std::min<std::int64_t>(64, spec.n), spec.n);
  slice_ = &products.find(slice_spec(slice_cols_));
  const std::int64_t rest = spec.n % slice_cols_;
  last_slice_ = rest == 0 ? slice_ : &products.find(slice_spec(rest));

  const auto part = [this](std::int64_t floats) {
    const std::int64_t offset = scratch_bytes_;
    scratch_bytes_ += round_up(floats * 4, 64);
    return offset;
  };
  a_offset_ = part(spec.a == DType::f32 ? 0 : spec.m * spec.k);
  b_offset_ = part(spec.b == DType::f32 ? 0 : spec.k * slice_cols_);
  bias_offset_ = part(spec.bias.value_or(DType::f32) == DType::f32 ? 0 : spec.n);
  c_offset_ = part(spec.c == DType::f32 ? 0 : spec.m * slice_cols_);
  inner_offset_ = scratch_bytes_;
  scratch_bytes_ += std::max(slice_->scratch_bytes(), last_slice_->scratch_bytes());
}

ProductSpec ConvertedProduct::slice_spec(std::int64_t cols) const {
  ProductSpec s = spec_;
  s.n = cols;
  s.a = s.b = s.c = DType::f32;
  if (spec_.a != DType::f32) s.lda = spec_.transposed_a ? spec_.m : spec_.k;
  if (spec_.b != DType::f32) s.ldb = spec_.transposed_b ? spec_.k : cols;
  if (spec_.c != DType::f32) {
    s.ldc = cols;
    s.accumulate = false;
  }
  if (s.bias) s.bias = DType::f32;
  return s;
}

const float* ConvertedProduct::convert_b(const void* b, std::int64_t begin, std::int64_t cols, float* scratch) const {
  const std::byte* first = element_at(b, spec_.b, spec_.transposed_b ? begin * spec_.ldb : begin);
  if (spec_.b == DType::f32) return reinterpret_cast<const float*>(first);
  if (spec_.transposed_b) {
    convert_rows(first, spec_.b, spec_.ldb, cols, spec_.k, scratch);
  } else {
    convert_rows(first, spec_.b, spec_.ldb, spec_.k, cols, scratch);
  }
  return scratch;
}

void ConvertedProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  std::byte* memory = static_cast<std::byte*>(scratch);
  const auto floats = [memory](std::int64_t offset) { return reinterpret_cast<float*>(memory + offset); };
  if (spec_.a != DType::f32) {
    convert_rows(a, spec_.a, spec_.lda, spec_.transposed_a ? spec_.k : spec_.m, spec_.transposed_a ? spec_.m : spec_.k, floats(a_offset_));
    a = floats(a_offset_);
  }
  if (spec_.bias.value_or(DType::f32) != DType::f32) {
    loops().convert(bias, *spec_.bias, floats(bias_offset_), DType::f32, 0, spec_.n);
    bias = floats(bias_offset_);
  }
  for (std::int64_t begin = 0; begin < spec_.n; begin += slice_cols_) {
    const std::int64_t cols = std::min(slice_cols_, spec_.n - begin);
    const Product& product = cols == slice_cols_ ? *slice_ : *last_slice_;
    const float* b_slice = convert_b(b, begin, cols, floats(b_offset_));
    const void* bias_slice = bias ? static_cast<const float*>(bias) + begin : nullptr;
    void* c_slice = spec_.c == DType::f32 ? element_at(c, DType::f32, begin) : memory + c_offset_;
    product.run(a, b_slice, bias_slice, c_slice, memory + inner_offset_);
    if (spec_.c == DType::f32) continue;
    round_rows(floats(c_offset_), spec_.m, cols, element_at(c, spec_.c, begin), spec_.c, spec_.ldc, spec_.accumulate);
  }
}

}  // namespace mica::cpu
