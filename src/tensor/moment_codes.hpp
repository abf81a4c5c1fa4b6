// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// [Note: 8-bit moments] DType::moment8 is an fp32 without most of its bits: its sign, 5 bits of exponent, 2 of mantissa. DType::square8,
// for second moments, which are never negative, has 6 bits of exponent, since squares span twice the binades, and 2 of mantissa. Code c
// from 1 on is the fp32 with the bits (c + kOffset) << 21; 0 is 0, and the highest code of a magnitude is NaN, also for infinity.
// What is larger than the largest number becomes that. Numbers lie between 2^-27 = 7.5e-9 and 20, squares between 2^-54 and 640.
// - Every element is a code of its own. Blocks with a common scale (Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
//   arXiv:2110.02861) spend fewer bits on the exponent, but their bits are the same on any number of ranks only where no shard cuts a
//   block; they need a second array, of scales, beside each array of state, in memory, in files and on the way between ranks; and
//   nothing less than a block can be converted. With an exponent in each element none of that is there, and rounding at random
//   ([Note: rounding of moments]) takes the place of mantissa bits: the mean over steps is exact.
// - The range is enough because Adam has eps: a second moment that is rounded to 0 was below 2^-54, so that its root is smaller than
//   eps = 1e-8 and the step's denominator is eps to twice eps with it and without it. Hence AdamWOptions refuses a smaller eps.
//   Gradients that are clipped, as by default, are never above 20.
namespace mica {

struct Moment8Code {
  static constexpr std::uint32_t kLargest = 126;             // finite code
  static constexpr std::uint32_t kOffset = (100U << 2) - 1;  // code 1 has exponent 100 - 127
  static constexpr float kNoiseUnits = 0x1p48F;              // 2^21 / the smallest number
  static constexpr bool kIsSigned = true;
};
struct Square8Code {
  static constexpr std::uint32_t kLargest = 254;
  static constexpr std::uint32_t kOffset = (73U << 2) - 1;  // code 1 has exponent 73 - 127
  static constexpr float kNoiseUnits = 0x1p75F;
  static constexpr bool kIsSigned = false;
};

/// Bits of an fp32 that a code does not have.
inline constexpr int kCutBits = 21;

/// The noise of moment_code() of 16 random bits. [Note: length of steps] says why that of second moments is a little larger.
template <class Code, class Word>
[[gnu::always_inline]] inline Word code_noise(Word random) {
  if constexpr (!Code::kIsSigned) random = random + ((random * (0x10000U - random)) >> 20);
  return random << (kCutBits - 16);
}

/// x rounded away from zero if what is cut off it, in units of 2^-21 of the distance of its neighbours, and `noise` make 2^21.
/// @param noise  below 2^21
template <class Code, class Math, class Float = typename Math::Float, class Word = typename Math::Word>
[[gnu::always_inline]] inline Word moment_code(Float x, Word noise) {
  constexpr std::uint32_t kLowest = (Code::kOffset + 1) << kCutBits, kOne = 1U << kCutBits;
  const Word bits = Math::bits(x), magnitude = bits & 0x7fffffffU;
  const Word above_zero = Math::from_bits(magnitude) * Code::kNoiseUnits >= Math::to_float(kOne - noise) ? Word{} + 1U : Word{};
  const Word normal = ((magnitude + noise) >> kCutBits) - Code::kOffset;
  Word code = magnitude < kLowest ? above_zero : normal;
  code = code > Code::kLargest ? Word{} + Code::kLargest : code;
  code = magnitude >= 0x7f800000U ? Word{} + (Code::kLargest + 1U) : code;
  if constexpr (Code::kIsSigned) code = code | ((bits >> 24) & 0x80U);
  return code;
}

/// x rounded to nearest, ties to the even code; but half of the smallest number is rounded up to it.
template <class Code, class Math, class Float = typename Math::Float, class Word = typename Math::Word>
[[gnu::always_inline]] inline Word nearest_moment_code(Float x) {
  const Word odd = (((Math::bits(x) & 0x7fffffffU) >> kCutBits) - Code::kOffset) & 1U;
  return moment_code<Code, Math>(x, odd + 0xfffffU);
}

template <class Code, class Math, class Word = typename Math::Word>
[[gnu::always_inline]] inline typename Math::Float moment_value(Word code) {
  constexpr std::uint32_t kMagnitude = Code::kIsSigned ? 0x7fU : 0xffU;
  const Word magnitude = code & kMagnitude;
  Word bits = (magnitude + Code::kOffset) << kCutBits;
  bits = magnitude == 0U ? Word{} : bits;
  bits = magnitude > Code::kLargest ? Word{} + 0x7fc00000U : bits;
  return Math::from_bits(bits | ((code & ~kMagnitude) << 24));
}

}  // namespace mica
