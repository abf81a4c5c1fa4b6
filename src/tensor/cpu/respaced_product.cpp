// SPDX-License-Identifier: Apache-2.0
#include "respaced_product.hpp"

#include <algorithm>
#include <cstring>

#include <omp.h>

#include "mica/core/rounding.hpp"

#include "onednn_product.hpp"
#include "parallel.hpp"
#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// A slice of B stays in the last-level cache until it is used. Shorter slices would add to C more often.
constexpr std::int64_t kRespacedBytes = 8 << 20;
constexpr std::int64_t kFewestColumns = 512;

/// Whether B is worth a copy. Where its rows lie an odd multiple of 1 KiB apart, two threads gained nothing by it.
bool is_worth_a_copy(std::int64_t rows, std::int64_t ldb) {
  if (ldb % (2 * kRowsApart) == 0) return rows >= 32;
  return rows >= 128 && omp_get_max_threads() == 1;
}

ProductSpec with_ldb(ProductSpec spec, std::int64_t ldb) {
  spec.ldb = ldb;
  return spec;
}

}  // namespace

bool RespacedProduct::suits(const ProductSpec& s) {
  return s.a == DType::f32 && s.b == DType::f32 && s.c == DType::f32 && !s.bias && !s.transposed_b && s.k > 0 && s.n >= kFewestColumns &&
         s.ldb % kRowsApart == 0 && is_worth_a_copy(s.m, s.ldb) && onednn_reads_in_place(s);
}

RespacedProduct::RespacedProduct(const ProductSpec& spec, Products& products)
    : spec_(spec), ldb_(spaced(spec.n)), slices_(with_ldb(spec, ldb_), std::max<std::int64_t>(1, kRespacedBytes / (4 * ldb_)), products) {}

std::int64_t RespacedProduct::slice_bytes() const { return round_up(4 * slices_.depth() * ldb_, 64); }

std::int64_t RespacedProduct::scratch_bytes() const { return slice_bytes() + slices_.scratch_bytes(); }

void RespacedProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  auto* const slice = static_cast<float*>(scratch);
  std::byte* const inner = static_cast<std::byte*>(scratch) + slice_bytes();
  slices_.for_each([&](std::int64_t begin, std::int64_t depth, const Product& product) {
    parallel_ranges(depth, 8, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t row = first; row < end; ++row) {
        std::memcpy(slice + row * ldb_, element_at(b, DType::f32, (begin + row) * spec_.ldb), static_cast<std::size_t>(4 * spec_.n));
      }
    });
    product.run(element_at(a, DType::f32, spec_.transposed_a ? begin * spec_.lda : begin), slice, nullptr, c, inner);
  });
}

}  // namespace mica::cpu
