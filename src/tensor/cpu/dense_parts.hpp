// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "products.hpp"

namespace mica::cpu {

/// [Note: dense operands] With AVX-512, oneDNN 2.6 has two kernels for products of f32 and bf16: one for dense operands, which reads some
/// of them in place, and an older one for rows that lie apart, which packs both. On Zen 5 the latter is 1.1 to 1.4 times as fast for the
/// gradients of large layers in f32 (docs/performance.md). The rows of a part of a dense matrix lie apart, so such products are made of
/// parts. In bf16 the scratch memory that the older kernel allocates costs what its speed gains.
enum class DenseParts : std::uint8_t { none, depth, columns, rows };

/// Which parts of this product are faster than the whole, on processors where any are.
[[nodiscard]] DenseParts faster_parts(const ProductSpec& spec);

/// The product, made of such parts. Null: none.
[[nodiscard]] std::unique_ptr<Product> make_of_dense_parts(const ProductSpec& spec, DenseParts parts, Products& products);

}  // namespace mica::cpu
