// SPDX-License-Identifier: Apache-2.0
#include "rounded_product.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"

#include "loops.hpp"
#include "parallel.hpp"

namespace mica::cpu {

namespace {

/// Of f32 sums: they stay in a cache until they are rounded.
constexpr std::int64_t kSliceBytes = 4 << 20;
/// Less than this oneDNN may have.
constexpr std::int64_t kMostScratch = 16 << 20;

std::int64_t sum_bytes(const ProductSpec& spec, std::int64_t rows) { return round_up(4 * rows * spec.n, 64); }

}  // namespace

bool RoundedProduct::suits(const ProductSpec& s, std::int64_t scratch_bytes) {
  return s.c == DType::bf16 && !s.bias && scratch_bytes >= std::max(kMostScratch, sum_bytes(s, s.m));
}

RoundedProduct::RoundedProduct(const ProductSpec& spec, Products& products)
    : spec_(spec), slice_rows_(std::clamp<std::int64_t>(kSliceBytes / (4 * spec.n) / 32 * 32, 32, spec.m)) {
  slice_ = &products.find(slice_spec(slice_rows_));
  const std::int64_t rest = spec.m % slice_rows_;
  last_slice_ = rest == 0 ? slice_ : &products.find(slice_spec(rest));
}

std::int64_t RoundedProduct::scratch_bytes() const {
  return sum_bytes(spec_, slice_rows_) + std::max(slice_->scratch_bytes(), last_slice_->scratch_bytes());
}

ProductSpec RoundedProduct::slice_spec(std::int64_t rows) const {
  ProductSpec s = spec_;
  s.m = rows;
  s.c = DType::f32;
  s.ldc = spec_.n;
  s.accumulate = false;
  return s;
}

void RoundedProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  auto* const sums = static_cast<float*>(scratch);
  std::byte* const inner = static_cast<std::byte*>(scratch) + sum_bytes(spec_, slice_rows_);
  const std::int64_t a_step = (spec_.transposed_a ? 1 : spec_.lda) * dtype_bytes(spec_.a), c_step = spec_.ldc * dtype_bytes(spec_.c);
  const Write mode = spec_.accumulate ? Write::accumulate : Write::overwrite;
  for (std::int64_t first = 0; first < spec_.m; first += slice_rows_) {
    const std::int64_t rows = std::min(slice_rows_, spec_.m - first);
    const Product& product = rows == slice_rows_ ? *slice_ : *last_slice_;
    product.run(static_cast<const std::byte*>(a) + first * a_step, b, nullptr, sums, inner);
    parallel_ranges(rows, row_grain(spec_.n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        std::byte* const to = static_cast<std::byte*>(c) + (first + row) * c_step;
        loops().scale(sums + row * spec_.n, DType::f32, 1.0F, to, spec_.c, mode, 0, spec_.n);
      }
    });
  }
}

}  // namespace mica::cpu
