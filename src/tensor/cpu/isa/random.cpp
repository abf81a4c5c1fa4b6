// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/random.hpp"

#include "elements.hpp"
#include "install.hpp"
#include "math.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

/// Low and high words of the products of all lanes.
struct WideProduct {
  U32 low, high;
};
MICA_INLINE WideProduct multiply_wide(U32 a, std::uint32_t constant) {
  const U32 b = U32{} + constant;
  const U64 even = multiply_even(a, b);
  const U64 odd = multiply_even(reinterpret_cast<U32>(reinterpret_cast<U64>(a) >> 32), b);
  constexpr std::uint64_t kHigh = 0xffffffff00000000ULL;
  return {reinterpret_cast<U32>((even & ~kHigh) | (odd << 32)), reinterpret_cast<U32>((even >> 32) | (odd & kHigh))};
}

/// philox4x32_10 of kLanes consecutive blocks, the first of which is a multiple of kLanes; words[v] holds the words
/// [v * kLanes, (v + 1) * kLanes) in the order of their elements.
MICA_INLINE void random_words(const PhiloxStream& s, std::uint64_t first_block, U32 (&words)[4]) {
  U32 c0 = reinterpret_cast<U32>(lane_numbers()) + static_cast<std::uint32_t>(first_block);
  U32 c1 = U32{} + (s.counter1 ^ (static_cast<std::uint32_t>(first_block >> 32) << 16));
  U32 c2 = U32{} + s.counter2;
  U32 c3 = U32{} + s.counter3;
  std::uint32_t k0 = s.key0, k1 = s.key1;
  for (int round = 0; round < 10; ++round) {
    const WideProduct p0 = multiply_wide(c0, 0xD2511F53U);
    const WideProduct p1 = multiply_wide(c2, 0xCD9E8D57U);
    c0 = p1.high ^ c1 ^ k0;
    c1 = p1.low;
    c2 = p0.high ^ c3 ^ k1;
    c3 = p0.low;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  const U32 even_low = interleave_low(c0, c2), even_high = interleave_high(c0, c2);
  const U32 odd_low = interleave_low(c1, c3), odd_high = interleave_high(c1, c3);
  words[0] = interleave_low(even_low, odd_low);
  words[1] = interleave_high(even_low, odd_low);
  words[2] = interleave_low(even_high, odd_high);
  words[3] = interleave_high(even_high, odd_high);
}

/// body(i, first, count, word): elements [i, i + count) are the lanes [first, first + count) of `word`.
/// Whole vectors come with lanes = Whole, partial ones at the start and the end with the element count.
template <class Body>
MICA_INLINE void for_random_words(const PhiloxStream& s, std::int64_t begin, std::int64_t end, Body body) {
  constexpr std::int64_t kGroup = 4 * kLanes;
  for (std::int64_t group = begin / kGroup * kGroup; group < end; group += kGroup) {
    U32 words[4];
    random_words(s, static_cast<std::uint64_t>(group) / 4, words);
    for (int v = 0; v < 4; ++v) {
      const std::int64_t i = group + v * kLanes;
      const std::int64_t first = i < begin ? begin - i : 0;
      const std::int64_t last = end - i < kLanes ? end - i : kLanes;
      if (first == 0 && last == kLanes) {
        body(i, words[v], Whole{});
      } else if (first < last) {
        // Moves the wanted words to the front.
        std::uint32_t shifted[2 * kLanes] = {};
        __builtin_memcpy(shifted, &words[v], sizeof words[v]);
        U32 front;
        __builtin_memcpy(&front, shifted + first, sizeof front);
        body(i + first, front, Part{last - first});
      }
    }
  }
}

void normal(DType dtype, void* x, const PhiloxStream& stream, float std, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=, &stream](auto type) {
    auto* to = typed(x, type);
    for_random_words(stream, begin, end, [=](std::int64_t i, U32 word, auto lanes) MICA_INLINE_LAMBDA {
      store(to + (i - begin), normal_from_word<VectorMath>(word) * std, lanes);
    });
  });
}

void dropout(DType dtype, const void* x, void* y, const PhiloxStream& stream, std::uint32_t threshold, float factor, std::int64_t begin,
             std::int64_t end) {
  with_type(dtype, [=, &stream](auto type) {
    const auto* from = typed(x, type);
    auto* to = typed(y, type);
    for_random_words(stream, begin, end, [=](std::int64_t i, U32 word, auto lanes) MICA_INLINE_LAMBDA {
      store(to + i, word >= threshold ? load(from + i, lanes) * factor : F32{}, lanes);
    });
  });
}

}  // namespace

void install_random(Loops& table) {
  table.normal = normal;
  table.dropout = dropout;
}

}  // namespace mica::cpu::MICA_ISA
