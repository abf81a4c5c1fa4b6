// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica::cpu {

/// Rotary embedding of x [B,T,heads*D] into y. [Note: rotary angles]
/// Tokens are taken kRotaryBlock at a time: one double-precision cosine and sine at the block's first position for each
/// frequency, then one rotation per position, so that no table of all positions is needed and an angle's error stays
/// near 1e-14 at any length. Blocks begin at multiples of kRotaryBlock on any thread, so that bits do not depend on the
/// number of threads.
inline constexpr std::int64_t kRotaryBlock = 64;
/// Bytes of scratch for `threads` threads.
[[nodiscard]] std::int64_t rotary_scratch_bytes(std::int64_t head_dim, int threads);
/// Threads that rotary() uses at most.
[[nodiscard]] int rotary_threads(const ConstTensorView& x);
void rotary(const ConstTensorView& x, const std::vector<double>& inv_freq, Turn turn, const TensorView& y, void* scratch);

}  // namespace mica::cpu
