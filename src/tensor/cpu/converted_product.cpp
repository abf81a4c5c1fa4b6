// SPDX-License-Identifier: Apache-2.0
#include "converted_product.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"

#include "loops.hpp"
#include "parallel.hpp"
#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// The most floats of a part of B or C, which stays in the last-level cache; but kFewest columns or rows are not cut.
constexpr std::int64_t kPartFloats = 2 << 20, kFewest = 512;
/// Longer columns of B are cut.
constexpr std::int64_t kLongestColumns = 16384;

/// dst[rows, cols] f32, ld_dst apart = src rows of stride ld.
void convert_rows(const void* src, DType dtype, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* dst, std::int64_t ld_dst) {
  parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      loops().convert(element_at(src, dtype, row * ld), dtype, dst + row * ld_dst, DType::f32, 0, cols);
    }
  });
}

struct PartSize {
  std::int64_t rows, cols, depth;
};

PartSize part_size(const ProductSpec& s) {
  const auto part = [](std::int64_t total, std::int64_t across) {
    constexpr std::int64_t kTogether = 64;  // products of whole multiples leave no edges
    return std::min(total, round_up(even_part(total, std::max(kFewest, kPartFloats / across)), kTogether));
  };
  if (s.k > kLongestColumns && !s.transposed_b && !s.bias) return {s.m, s.n, part(s.k, s.n)};
  const std::int64_t cols = part(s.n, std::max(s.k, kFewest));
  return {s.c == DType::f32 ? s.m : part(s.m, cols), cols, s.k};
}

}  // namespace

ConvertedProduct::ConvertedProduct(const ProductSpec& spec, Products& products)
    : spec_(spec), lda_(spec.a == DType::f32 ? spec.lda : spaced(spec.transposed_a ? spec.m : spec.k)) {
  const PartSize size = part_size(spec);
  std::int64_t inner_bytes = 0;
  Part part;
  do {
    part.depth = std::min(size.depth, spec.k - part.first);
    for (part.col = 0; part.col < spec.n; part.col += size.cols) {
      part.cols = std::min(size.cols, spec.n - part.col);
      for (part.row = 0; part.row < spec.m; part.row += size.rows) {
        part.rows = std::min(size.rows, spec.m - part.row);
        part.product = products.find(part_spec(part));
        inner_bytes = std::max(inner_bytes, part.product->scratch_bytes());
        parts_.push_back(part);
      }
    }
    part.first += size.depth;
  } while (part.first < spec.k);

  const auto space = [this](bool is_needed, std::int64_t floats) {
    const std::int64_t offset = scratch_bytes_;
    scratch_bytes_ += is_needed ? round_up(floats * 4, 64) : 0;
    return offset;
  };
  a_offset_ = space(spec.a != DType::f32, (spec.transposed_a ? spec.k : spec.m) * lda_);
  b_offset_ = space(spec.b != DType::f32, spec.transposed_b ? size.cols * spec.k : size.depth * spaced(size.cols));
  bias_offset_ = space(spec.bias.value_or(DType::f32) != DType::f32, spec.n);
  c_offset_ = space(spec.c != DType::f32, size.rows * size.cols);
  inner_offset_ = scratch_bytes_;
  scratch_bytes_ += inner_bytes;
}

ProductSpec ConvertedProduct::part_spec(const Part& part) const {
  ProductSpec s = spec_;
  s.m = part.rows;
  s.n = part.cols;
  s.k = part.depth;
  s.lda = lda_;
  s.a = s.b = s.c = DType::f32;
  if (spec_.b != DType::f32) s.ldb = spec_.transposed_b ? spec_.k : spaced(part.cols);
  if (spec_.c != DType::f32) {
    s.ldc = part.cols;
    s.accumulate = false;
  }
  s.accumulate = s.accumulate || part.first > 0;
  if (s.bias) s.bias = DType::f32;
  return s;
}

const float* ConvertedProduct::convert_b(const void* b, const Part& part, float* scratch) const {
  const std::byte* begin = element_at(b, spec_.b, spec_.transposed_b ? part.col * spec_.ldb : part.first * spec_.ldb + part.col);
  if (spec_.b == DType::f32) return reinterpret_cast<const float*>(begin);
  if (spec_.transposed_b) {
    convert_rows(begin, spec_.b, spec_.ldb, part.cols, spec_.k, scratch, spec_.k);
  } else {
    convert_rows(begin, spec_.b, spec_.ldb, part.depth, part.cols, scratch, spaced(part.cols));
  }
  return scratch;
}

void ConvertedProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  std::byte* memory = static_cast<std::byte*>(scratch);
  const auto floats = [memory](std::int64_t offset) { return reinterpret_cast<float*>(memory + offset); };
  if (spec_.a != DType::f32) {
    const std::int64_t rows = spec_.transposed_a ? spec_.k : spec_.m, cols = spec_.transposed_a ? spec_.m : spec_.k;
    convert_rows(a, spec_.a, spec_.lda, rows, cols, floats(a_offset_), lda_);
    a = floats(a_offset_);
  }
  if (spec_.bias.value_or(DType::f32) != DType::f32) {
    loops().convert(bias, *spec_.bias, floats(bias_offset_), DType::f32, 0, spec_.n);
    bias = floats(bias_offset_);
  }
  const float* b_part = nullptr;
  for (const Part& part : parts_) {
    if (part.row == 0) b_part = convert_b(b, part, floats(b_offset_));
    const void* a_part = element_at(a, DType::f32, spec_.transposed_a ? part.first * lda_ + part.row : part.row * lda_ + part.first);
    const void* bias_part = bias ? static_cast<const float*>(bias) + part.col : nullptr;
    std::byte* c_part = element_at(c, spec_.c, part.row * spec_.ldc + part.col);
    float* sums = spec_.c == DType::f32 ? reinterpret_cast<float*>(c_part) : floats(c_offset_);
    part.product->run(a_part, b_part, bias_part, sums, memory + inner_offset_);
    if (spec_.c == DType::f32 || part.first + part.depth < spec_.k) continue;
    round_rows(sums, part.rows, part.cols, c_part, spec_.c, spec_.ldc, spec_.accumulate);
  }
}

}  // namespace mica::cpu
