// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/tensor/kernels.hpp"

// What Kernels::attention requires of its arguments on every device.
namespace mica::arguments {

/// @throws Error for an invalid shape, heads that do not divide into groups, views of another size or dtype
void expect_attention(const AttentionShape& shape, const ConstQkv& in, ConstTensorView y, ConstTensorView lse);
void expect_attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                               const Qkv& d_in);
/// Also for rows that do not fit the cache or share a slot.
void expect_attention_cached(const AttentionShape& shape, const ConstQkv& in, std::span<const double> inv_freq, const AttentionCache& cache,
                             std::span<const CachedRow> rows, ConstTensorView y);

}  // namespace mica::arguments
