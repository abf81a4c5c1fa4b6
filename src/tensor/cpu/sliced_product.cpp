// SPDX-License-Identifier: Apache-2.0
#include "sliced_product.hpp"

#include <algorithm>

#include <omp.h>

#include "mica/core/rounding.hpp"

#include "onednn_product.hpp"
#include "product_rows.hpp"

namespace mica::cpu {

namespace {

constexpr std::int64_t kMostSliceColumns = 512;
/// Smaller products were not measured.
constexpr std::int64_t kFewestSlicedRows = 32, kLeastSlicedDepth = 512;

}  // namespace

bool SlicedProduct::suits(const ProductSpec& s) {
  return s.a == DType::f32 && s.b == DType::f32 && s.c == DType::f32 && s.transposed_b && s.m >= kFewestSlicedRows &&
         s.k >= kLeastSlicedDepth && s.n > kMostSliceColumns && omp_get_max_threads() == 1 && onednn_reads_in_place(s);
}

SlicedProduct::SlicedProduct(const ProductSpec& spec, Products& products)
    : spec_(spec), cols_(std::min(spec.n, round_up(even_part(spec.n, kMostSliceColumns), 16))) {
  ProductSpec slice = spec;
  slice.n = cols_;
  slice_ = products.find(slice);
  slice.n = spec.n - (divide_up(spec.n, cols_) - 1) * cols_;
  last_ = products.find(slice);
}

std::int64_t SlicedProduct::scratch_bytes() const { return std::max(slice_->scratch_bytes(), last_->scratch_bytes()); }

void SlicedProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  for (std::int64_t first = 0; first < spec_.n; first += cols_) {
    const Product& product = first + cols_ < spec_.n ? *slice_ : *last_;
    const void* const its_bias = spec_.bias ? element_at(bias, *spec_.bias, first) : nullptr;
    product.run(a, element_at(b, spec_.b, first * spec_.ldb), its_bias, element_at(c, spec_.c, first), scratch);
  }
}

}  // namespace mica::cpu
