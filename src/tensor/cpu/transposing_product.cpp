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

/// What is transposed stays in a cache until it is used. Each part's product packs B anew.
constexpr std::int64_t kTransposedBytes = 4 << 20;
constexpr std::int64_t kFewestTransposed = 32;  // rows, columns or depth: below that, a product takes no time
constexpr std::int64_t kColumnsAtOnce = 256;    // of A, that a thread transposes

/// Of C, and so columns of A.
std::int64_t rows_to_transpose(const ProductSpec& s) {
  return std::min(s.m, round_up(even_part(s.m, std::max(kFewestTransposed, kTransposedBytes / (2 * s.k))), kFewestTransposed));
}

ProductSpec with_transposed_a(ProductSpec spec) {
  spec.lda = spec.k;
  spec.transposed_a = false;
  return spec;
}

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
    : spec_(spec), parts_(with_transposed_a(spec), &ProductSpec::m, rows_to_transpose(spec), products) {}

std::int64_t TransposingProduct::transposed_bytes() const { return round_up(2 * parts_.size() * spec_.k, 64); }

std::int64_t TransposingProduct::scratch_bytes() const { return transposed_bytes() + parts_.scratch_bytes(); }

void TransposingProduct::run(const void* a, const void* b, const void* /*bias*/, void* c, void* scratch) const {
  auto* const transposed = static_cast<std::uint16_t*>(scratch);
  std::byte* const inner = static_cast<std::byte*>(scratch) + transposed_bytes();
  parts_.for_each([&](std::int64_t first, std::int64_t rows, const Product& product) {
    const std::uint16_t* const columns = static_cast<const std::uint16_t*>(a) + first;
    parallel_ranges(rows, kColumnsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      pair_tiles()->transpose(columns + begin, spec_.lda, spec_.k, end - begin, transposed + begin * spec_.k, spec_.k);
    });
    product.run(transposed, b, nullptr, element_at(c, spec_.c, first * spec_.ldc), inner);
  });
}

}  // namespace mica::cpu
