// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/exact_sum.hpp"

#include "elements.hpp"
#include "install.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

constexpr std::int64_t kBlock = 1024;  // numbers summed at a time: they stay in the cache
constexpr int kPerVector = kLanes / 2;

MICA_INLINE double power_of_two(int exponent) { return __builtin_bit_cast(double, static_cast<std::uint64_t>(1023 + exponent) << 52); }
MICA_INLINE int exponent_of(double x) { return static_cast<int>(__builtin_bit_cast(std::uint64_t, x) >> 52 & 0x7ff) - 1023; }

struct Block {
  F64 values[kBlock / kPerVector];  // numbers >= 0; zeros behind the last
  int num_vectors = 0;
  MICA_INLINE double& at(int i) { return reinterpret_cast<double*>(values)[i]; }
};

/// Counts numbers that are NaN or at least 2^256, and replaces them by 0 in the block.
void take_out_large(Block& block, double limit, std::int64_t* limbs) {
  for (int i = 0; i < block.num_vectors * kPerVector; ++i) {
    double& x = block.at(i);
    if (x < limit) continue;
    ++limbs[x != x ? ExactSum::kNans : ExactSum::kInfinities];
    x = 0;
  }
}

// Goes down from the highest limb of the largest number: (x + magic) - magic rounds x to whole units of the limb, and the
// remainder goes to the next limb. This is exact, and so are the sums: 1024 numbers of at most 2^32 units each. Most blocks
// need 3 or 4 limbs.
void add_block(Block& block, std::int64_t* limbs) {
  constexpr int kHighest = ExactSum::kLowestExponent + static_cast<int>(ExactSum::kValueLimbs) * ExactSum::kLimbBits;
  const double limit = power_of_two(kHighest);
  for (bool again = true; again;) {
    F64 largest{};
    auto all_below = largest == largest;
    for (int v = 0; v < block.num_vectors; ++v) {
      largest = block.values[v] > largest ? block.values[v] : largest;
      all_below &= block.values[v] < limit;
    }
    double max = 0;
    again = false;
    for (int l = 0; l < kPerVector; ++l) {
      max = largest[l] > max ? largest[l] : max;
      again |= all_below[l] == 0;
    }
    if (again) {
      take_out_large(block, limit, limbs);
      continue;
    }
    const int above = exponent_of(max) - ExactSum::kLowestExponent;
    if (max == 0 || above < 0) return;
    for (int k = above / ExactSum::kLimbBits; k >= 0; --k) {
      const int unit = ExactSum::kLowestExponent + k * ExactSum::kLimbBits;
      const double magic = 1.5 * power_of_two(52 + unit);
      F64 sum{};
      U64 left{};
      for (int v = 0; v < block.num_vectors; ++v) {
        const F64 whole = (block.values[v] + magic) - magic;
        block.values[v] -= whole;
        sum += whole;
        left |= reinterpret_cast<U64>(block.values[v]);
      }
      limbs[k] += static_cast<std::int64_t>(sum_lanes(sum) * power_of_two(-unit));
      std::uint64_t any = 0;
      for (int l = 0; l < kPerVector; ++l) any |= left[l];
      if (any == 0) return;
    }
  }
}

/// Limbs of the sum of term(|x|), block by block.
template <class Type, class Term>
MICA_INLINE void add_terms(const Type* p, std::int64_t begin, std::int64_t end, std::int64_t* limbs, Term term) {
  Block block;
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t last = end - first < kBlock ? end : first + kBlock;
    block.num_vectors = 0;
    for_vectors(first, last, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      const F32 x = load(p + i, lanes);
      block.values[block.num_vectors++] = term(low_as_double(x));
      block.values[block.num_vectors++] = term(high_as_double(x));
    });
    add_block(block, limbs);
  }
}

void exact_power_sum(DType dtype, const void* x, double p, std::int64_t begin, std::int64_t end, std::int64_t* limbs) {
  with_type(dtype, [=](auto type) {
    const auto* px = typed(x, type);
    if (p == 2) return add_terms(px, begin, end, limbs, [](F64 e) MICA_INLINE_LAMBDA { return e * e; });
    if (p == 1) return add_terms(px, begin, end, limbs, [](F64 e) MICA_INLINE_LAMBDA { return e < 0 ? -e : e; });
    add_terms(px, begin, end, limbs, [p](F64 e) {
      for (int l = 0; l < kPerVector; ++l) e[l] = __builtin_pow(__builtin_fabs(e[l]), p);
      return e;
    });
  });
}

}  // namespace

void install_exact_sum(Loops& table) { table.exact_power_sum = exact_power_sum; }

}  // namespace mica::cpu::MICA_ISA
