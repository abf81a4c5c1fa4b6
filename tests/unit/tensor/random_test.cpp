// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/random.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "mica/core/error.hpp"

#include "loops_testing.hpp"

namespace mica {
namespace {
using testing::all_loops;
using testing::Array;
using testing::name_of;
using Block = std::array<std::uint32_t, 4>;

// kat_vectors of Random123 1.14, philox4x32 with 10 rounds.
TEST(Philox, PublishedKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32_10({ones, ones, ones, ones}, {ones, ones}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The mapping from keys to streams is part of the identity of a run and of its checkpoints: literal numbers.
TEST(RandomStream, MappingIsFixed) {
  const RandomKey key{.seed = 1, .step = 2, .sequence = 3, .name_hash = hash_name("h.0.attn")};
  EXPECT_EQ(random_block(key, 0), (Block{0xacc3b9d1, 0x8ea19b50, 0x24de4e9f, 0xb2e76983}));
  EXPECT_EQ(random_block(RandomKey{.seed = 42, .name_hash = hash_name("wte.weight")}, std::uint64_t{1} << 33),
            (Block{0x9c0ab56b, 0x05982c7e, 0xd17b0e1b, 0x3cff0473}));
}

TEST(RandomStream, NoTwoStreamsMeet) {
  std::set<Block> seen;
  std::int64_t made = 0;
  const auto add = [&](const RandomKey& key, std::uint64_t block) {
    seen.insert(random_block(key, block));
    ++made;
  };
  constexpr std::uint64_t top32 = (std::uint64_t{1} << 32) - 1, top48 = (std::uint64_t{1} << 48) - 1;
  for (const std::uint64_t seed : {0UL, 1UL, 2UL, 0x9E3779B9UL, 0x9E3779B97F4A7C15UL, ~0UL}) {
    for (const char* name : {"", "a", "b", "h.0.ln_1.weight", "h.1.ln_1.weight", "h.0.ln_2.weight"}) {
      for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, top32}) {
        for (const std::uint64_t sequence : {std::uint64_t{0}, std::uint64_t{1}, top32, top32 + 1, top48}) {
          for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{1}, top32, top32 + 1, top48}) {
            add({seed, step, sequence, hash_name(name)}, block);
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), made);
}

// Neighbouring seeds, steps, sequences, names and blocks: half of the output bits differ.
TEST(RandomStream, NeighboursHaveNothingInCommon) {
  const RandomKey key{.seed = 7, .step = 7, .sequence = 7, .name_hash = 7};
  std::vector<RandomKey> neighbours(4, key);
  neighbours[0].seed++;
  neighbours[1].step++;
  neighbours[2].sequence++;
  neighbours[3].name_hash++;
  for (const RandomKey& other : neighbours) {
    int differing = 0;
    constexpr int kBlocks = 2000;
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      const Block a = random_block(key, block), b = random_block(other, block);
      for (std::size_t i = 0; i < 4; ++i) differing += std::popcount(a[i] ^ b[i]);
    }
    // 128 * kBlocks fair coins: deviation 0.5 * sqrt(256000) = 253.
    EXPECT_NEAR(differing, 64 * kBlocks, 5 * 253);
  }
}

TEST(RandomNormal, VectorLoopsGiveTheScalarBits) {
  const RandomKey key{.seed = 3, .step = 1, .sequence = 9, .name_hash = hash_name("w")};
  constexpr std::int64_t n = 3000;
  for (const cpu::Loops* loops : all_loops()) {
    for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{5}, (std::int64_t{1} << 34) - 70}) {
      std::vector<float> seen(n);
      loops->normal(DType::f32, seen.data(), key, 0.25F, begin, begin + n);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(i)], 0.25F * random_normal(key, static_cast<std::uint64_t>(begin + i)))
            << name_of(*loops) << " element " << begin + i;
      }
    }
  }
}

TEST(RandomNormal, SameBitsForAnySplit) {
  const RandomKey key{.seed = 3};
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      testing::expect_same_bits_for_any_split(Array(dtype, 150), [&](Array& out, std::int64_t b, std::int64_t e) {
        void* at = static_cast<char*>(out.data()) + b * dtype_bytes(dtype);
        loops->normal(dtype, at, key, 1.0F, b + 3, e + 3);
      });
    }
  }
}

/// Upper tail of the normal distribution.
double tail(double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); }

// Every word's number is the quantile of the probability it stands for, also at the ends.
TEST(RandomNormal, IsTheQuantileOfItsWord) {
  struct Exact {
    using Float = float;
    using Word = std::uint32_t;
    static float to_float(Word w) { return static_cast<float>(static_cast<std::int32_t>(w)); }
    static Word bits(float x) { return std::bit_cast<Word>(x); }
    static float from_bits(Word w) { return std::bit_cast<float>(w); }
    static float sqrt(float x) { return std::sqrt(x); }
  };
  const auto check = [](std::uint32_t k) {
    const double p = (k + 0.5) * 0x1p-32;
    const auto z = static_cast<double>(normal_from_word<Exact>(k));
    // d tail / tail is about -z dz: this is a relative error of z below 4e-7. Near 1/2 z itself is compared.
    ASSERT_NEAR(tail(z) / p, 1, 4e-7 * (1 + z * z)) << "word " << k << " gives " << z;
    if (k > 0x7ff00000U) {
      ASSERT_NEAR(z / ((0.5 - p) * std::sqrt(2 * std::acos(-1.0))), 1, 1e-6) << "word " << k;
    }
    ASSERT_EQ(normal_from_word<Exact>(k | 0x80000000U), static_cast<float>(-z));
  };
  for (std::uint32_t k = 0; k < 100000; ++k) check(k);
  for (std::uint32_t k = 0; k < 0x80000000U - 9973U; k += 9973U) check(k);
  for (std::uint32_t k = 0x7fffffffU; k > 0x7fffffffU - 100000U; --k) check(k);
  EXPECT_NEAR(static_cast<double>(normal_from_word<Exact>(0)), 6.3379, 1e-3);
}

TEST(RandomNormal, MomentsAndDistribution) {
  constexpr std::int64_t n = 4'000'000;
  std::vector<float> x(n);
  cpu::loops().normal(DType::f32, x.data(), RandomKey{.seed = 12345, .name_hash = hash_name("moments")}, 1.0F, 0, n);
  double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0, product = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double z = static_cast<double>(x[i]);
    sum += z, sum2 += z * z, sum3 += z * z * z, sum4 += z * z * z * z;
    product += z * static_cast<double>(x[(i + 1) % n]);
  }
  const double root = std::sqrt(static_cast<double>(n));  // deviations of the estimates: 1, sqrt 2, sqrt 15, sqrt 96
  EXPECT_LT(std::abs(sum / n), 4 / root);
  EXPECT_LT(std::abs(sum2 / n - 1), 4 * std::sqrt(2) / root);
  EXPECT_LT(std::abs(sum3 / n), 4 * std::sqrt(15) / root);
  EXPECT_LT(std::abs(sum4 / n - 3), 4 * std::sqrt(96) / root);
  EXPECT_LT(std::abs(product / n), 4 / root) << "neighbours are correlated";

  std::sort(x.begin(), x.end());
  double distance = 0;  // Kolmogorov-Smirnov; 1.95 / sqrt(n) is exceeded once in a thousand
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double cdf = tail(-static_cast<double>(x[i]));
    distance = std::max({distance, std::abs(cdf - static_cast<double>(i) / n), std::abs(cdf - (static_cast<double>(i) + 1) / n)});
  }
  EXPECT_LT(distance, 1.95 / root);
  // Expected beyond 5 deviations: n * 5.7e-7 = 2.3; beyond 4: 253 +- 16.
  EXPECT_GT(x.back(), 4.5F);
  EXPECT_LT(x.front(), -4.5F);
  const auto beyond4 = std::count_if(x.begin(), x.end(), [](float z) { return std::abs(z) > 4; });
  EXPECT_NEAR(static_cast<double>(beyond4), n * 2 * tail(4), 80);
}

TEST(Dropout, KeepsByTheWordOfTheElement) {
  const RandomKey key{.seed = 5, .step = 1, .sequence = 77, .name_hash = hash_name("drop")};
  const std::uint32_t threshold = dropout_threshold(0.3);
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Array x = testing::normal_array(dtype, 150, 1);
      const auto run = [&](Array& y, std::int64_t b, std::int64_t e) {
        loops->dropout(dtype, x.data(), y.data(), key, threshold, 2.0F, b, e);
      };
      Array y(dtype, 150);
      run(y, 0, 150);
      for (std::int64_t i = 0; i < 150; ++i) {
        ASSERT_EQ(y[i], random_word(key, static_cast<std::uint64_t>(i)) >= threshold ? 2 * x[i] : 0.0);
      }
      testing::expect_same_bits_for_any_split(Array(dtype, 150), run);
    }
  }
}

TEST(Dropout, ThresholdIsTheProbability) {
  EXPECT_EQ(dropout_threshold(0), 0U);
  EXPECT_EQ(dropout_threshold(0.25), 1U << 30);
  EXPECT_EQ(dropout_threshold(1 - 1e-12), 0xffffffffU);
  EXPECT_THROW(static_cast<void>(dropout_threshold(1)), ConfigError);
  EXPECT_THROW(static_cast<void>(dropout_threshold(-0.1)), ConfigError);
  EXPECT_THROW(static_cast<void>(dropout_threshold(std::nan(""))), ConfigError);
}

}  // namespace
}  // namespace mica
