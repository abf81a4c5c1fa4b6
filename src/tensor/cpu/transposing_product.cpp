// SPDX-License-Identifier: Apache-2.0
#include "transposing_product.hpp"

#include <algorithm>

#include <dnnl.hpp>

#include "mica/core/rounding.hpp"

#include "onednn_product.hpp"
#include "pair_tiles.hpp"
#include "parallel.hpp"
#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// A slice stays in a cache until it is used. Each slice's product packs B anew.
constexpr std::int64_t kTransposedBytes = 4 << 20;
constexpr std::int64_t kFewestTransposed = 32;  // rows, columns or depth: below that, a product takes no time
constexpr std::int64_t kColumnsAtOnce = 256;    // of A, that a thread transposes

}  // namespace

bool TransposingProduct::suits(const ProductSpec& s) {
#if DNNL_VERSION_MAJOR >= 3
  static_cast<void>(s);
  return false;  // not measured
#else
  return s.transposed_a && s.lda != s.m && s.a == DType::bf16 && s.b == DType::bf16 && s.c != DType::f16 && !s.bias &&
         std::min({s.m, s.n, s.k}) >= kFewestTransposed && onednn_uses(dnnl::cpu_isa::avx512_core_amx) && pair_tiles() != nullptr;
#endif
}

TransposingProduct::TransposingProduct(const ProductSpec& spec, Products& products)
    : spec_(spec),
      slice_rows_(
          std::min(spec.m, round_up(even_part(spec.m, std::max(kFewestTransposed, kTransposedBytes / (2 * spec.k))), kFewestTransposed))) {
  slice_ = products.find(slice_spec(slice_rows_));
  const std::int64_t rest = spec.m % slice_rows_;
  last_slice_ = rest == 0 ? slice_ : products.find(slice_spec(rest));
}

ProductSpec TransposingProduct::slice_spec(std::int64_t rows) const {
  ProductSpec s = spec_;
  s.m = rows;
  s.lda = spec_.k;
  s.transposed_a = false;
  return s;
}

std::int64_t TransposingProduct::slice_bytes() const { return round_up(2 * slice_rows_ * spec_.k, 64); }

std::int64_t TransposingProduct::scratch_bytes() const {
  return slice_bytes() + std::max(slice_->scratch_bytes(), last_slice_->scratch_bytes());
}

void TransposingProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  auto* const slice = static_cast<std::uint16_t*>(scratch);
  std::byte* const inner = static_cast<std::byte*>(scratch) + slice_bytes();
  for (std::int64_t first = 0; first < spec_.m; first += slice_rows_) {
    const std::int64_t rows = std::min(slice_rows_, spec_.m - first);
    const std::uint16_t* const columns = static_cast<const std::uint16_t*>(a) + first;
    parallel_ranges(rows, kColumnsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      pair_tiles()->transpose(columns + begin, spec_.lda, spec_.k, end - begin, slice + begin * spec_.k, spec_.k);
    });
    const Product& product = rows == slice_rows_ ? *slice_ : *last_slice_;
    product.run(slice, b, nullptr, element_at(c, spec_.c, first * spec_.ldc), inner);
  }
}

}  // namespace mica::cpu
