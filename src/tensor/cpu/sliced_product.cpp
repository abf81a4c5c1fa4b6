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

std::int64_t slice_columns(const ProductSpec& s) { return std::min(s.n, round_up(even_part(s.n, kMostSliceColumns), 16)); }

}  // namespace

bool SlicedProduct::suits(const ProductSpec& s) {
  return s.a == DType::f32 && s.b == DType::f32 && s.c == DType::f32 && s.transposed_b && s.m >= kFewestSlicedRows &&
         s.k >= kLeastSlicedDepth && s.n > kMostSliceColumns && omp_get_max_threads() == 1 && onednn_reads_in_place(s);
}

SlicedProduct::SlicedProduct(const ProductSpec& spec, Products& products)
    : SlicedProduct(spec, &ProductSpec::n, slice_columns(spec), products) {}

SlicedProduct::SlicedProduct(const ProductSpec& spec, std::int64_t ProductSpec::*extent, std::int64_t size, Products& products)
    : spec_(spec), has_slices_of_rows_(extent == &ProductSpec::m), slices_(spec, extent, size, products) {}

std::int64_t SlicedProduct::scratch_bytes() const { return slices_.scratch_bytes(); }

void SlicedProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  slices_.for_each([&](std::int64_t first, std::int64_t /*size*/, const Product& product) {
    if (has_slices_of_rows_) {
      product.run(element_at(a, spec_.a, spec_.transposed_a ? first : first * spec_.lda), b, bias,
                  element_at(c, spec_.c, first * spec_.ldc), scratch);
      return;
    }
    const void* const its_bias = spec_.bias ? element_at(bias, *spec_.bias, first) : nullptr;
    product.run(a, element_at(b, spec_.b, spec_.transposed_b ? first * spec_.ldb : first), its_bias, element_at(c, spec_.c, first),
                scratch);
  });
}

}  // namespace mica::cpu
