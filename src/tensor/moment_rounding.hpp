// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// [Note: rounding of moments] A moment moves by a small part of itself in a step: with beta2 = 0.999 by 0.1 %, less than half the
// distance of two bf16 numbers. Rounded to nearest it would stay where it is, and a second moment would never fall. So moments below
// fp32 are rounded up or down at random, such that their mean is exact. The random bits are a hash of the element's gradient, of its
// master before the step and of the step's number, which are the same on any number of ranks and after a resume: nothing is counted,
// seeded or saved, and no element's bits depend on the shard, or the run of elements, that it is in. (SGD does not count steps. Where
// its gradient and master stay the same, its momentum no longer changes the master.) Loads and state dicts, which have neither
// gradient nor step, round to nearest.
namespace mica {

/// 32 random bits for the moments of one element: the low half for the first one, the high half for the second.
/// A product and shifts (Chris Wellons, "Prospecting for hash functions", lowbias32), so the same on every instruction set.
template <class Math, class Float = typename Math::Float, class Word = typename Math::Word>
[[gnu::always_inline]] inline Word moment_noise(Float grad, Float param, std::uint32_t step) {
  Word h = Math::bits(grad) * 0x9e3779b9U + Math::bits(param) + step * 0x85ebca6bU;
  h = (h ^ (h >> 16)) * 0x21f0aaadU;
  h = (h ^ (h >> 15)) * 0x735a2d97U;
  return h ^ (h >> 15);
}

}  // namespace mica
