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
//
// [Note: length of steps] A step goes with 1/sqrt(v). An 8-bit v jumps up and down by a quarter to a seventh of itself, so that with an
// exact mean of v the mean of 1/sqrt(v), which is convex, was 3 % too large: steps were as long as with a learning rate 3 % (of rare
// gradients 5 %) higher. What has to be exact is the mean of v^p with another p. In a step v goes towards the mean g2 of the squared
// gradients by (1 - beta2)(g2 - v), so v^p by p (1 - beta2)(g2 v^(p-1) - v^p), and where it stays, the means of g2 v^(p-1) and of v^p are
// the same. If log v varies by s^2 around its mean l, that says l = log g2 + (1 - 2p) s^2 / 2, and the mean of 1/sqrt(v) is exp(s^2 / 8 - l
// / 2): that of g2 for p = 1/4. A number t of the way from one code to the next, which is 1 + d times as large, has its v^p when it is
// rounded up with probability t + t (1 - t) d (1 - p) / 2; d is 0.14 to 0.25, so 1/16 is taken for d (1 - p) / 2. As a change of the noise:
// u + u (1 - u) / 16. What is left is 0.5 % for normal gradients (tests/unit/tensor/loops_optimizer_test.cpp). bf16 has 30 times smaller
// jumps and needs nothing.
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
