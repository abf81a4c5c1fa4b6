// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "mica/tensor/exact_sum.hpp"

#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

class Exact : public KernelsTest {
 protected:
  static HostTensor fresh_limbs(std::int64_t rows = 1) { return {{rows, ExactSum::kLimbs}, DType::i64}; }
  TensorView row(HostTensor& limbs, std::int64_t i) { return limbs.view().slice(i * ExactSum::kLimbs, ExactSum::kLimbs); }
  /// Numbers whose sizes differ by 2^-40 to 2^40 (fp16: 2^-10 to 2^10), in no order.
  HostTensor wide(std::int64_t n, unsigned seed) {
    HostTensor x = random({n}, seed);
    const int most = dtype() == DType::f16 ? 10 : 40;
    for (std::int64_t i = 0; i < n; ++i) {
      x.set(i, std::ldexp(x.at(i), static_cast<int>((i * 7 + static_cast<std::int64_t>(seed)) % (2 * most + 1)) - most));
    }
    return x;
  }
  float value_of(Kernels& kernels, HostTensor& limbs) {
    HostTensor out({1}, DType::f32);
    kernels.exact_sum_value(*stream_, limbs, out);
    stream_->synchronize();
    return static_cast<float>(out.at(0));
  }
};

TEST_P(Exact, LimbsAreTheOracles) {
  for (const std::int64_t n : {0, 1, 7, 129, 1025, 5000}) {
    for (const double p : {1.0, 2.0, 3.0, 0.5}) {
      HostTensor x = wide(n, 3);
      Pair over(fresh_limbs().shape(), DType::i64), added(over);
      both([&](Kernels& kernels, bool r) {
        kernels.exact_power_sum(*stream_, x, p, over.of(r), Write::overwrite);
        kernels.exact_power_sum(*stream_, x, p, added.of(r), Write::overwrite);
        kernels.exact_power_sum(*stream_, x, 2, added.of(r), Write::accumulate);
      });
      if (device::is_gpu() && p != 1 && p != 2) {  // pow() of another library: a few units in the last place of a double
        oracle([&](Kernels& kernels) {
          const double expected = value_of(kernels, over.reference);
          EXPECT_NEAR(value_of(kernels, over.tested), expected, 0x1p-22 * expected) << n << " p=" << p;
        });
        continue;
      }
      EXPECT_TRUE(over.tested.same_bits(over.reference)) << n << " p=" << p;
      EXPECT_TRUE(added.tested.same_bits(added.reference)) << n << " p=" << p;
    }
  }
}

/// F3: whoever holds which elements, in whatever order.
TEST_P(Exact, AnySplitAndOrderGivesTheSameBits) {
  const std::int64_t n = 200'003;
  HostTensor x = wide(n, 5), backwards = x, whole = fresh_limbs(), reversed = whole;
  for (std::int64_t i = 0; i < n; ++i) backwards.set(i, x.at(n - 1 - i));
  tested_->exact_power_sum(*stream_, x, 2, whole, Write::overwrite);
  tested_->exact_power_sum(*stream_, backwards, 2, reversed, Write::overwrite);
  const float expected = value_of(*tested_, whole);
  EXPECT_TRUE(whole.same_bits(reversed));
  for (const std::int64_t ranks : {2, 3, 4, 6, 128}) {
    HostTensor limbs = fresh_limbs(ranks);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t begin = n * r / ranks, end = n * (r + 1) / ranks;
      tested_->exact_power_sum(*stream_, x.view().slice(begin, end - begin), 2, row(limbs, r), Write::overwrite);
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value_of(*tested_, limbs)), std::bit_cast<std::uint32_t>(expected)) << ranks;
    oracle([&](Kernels& kernels) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value_of(kernels, limbs)), std::bit_cast<std::uint32_t>(expected)) << ranks;
    });
  }
  HostTensor many = fresh_limbs();
  for (std::int64_t begin = 0, end = 0; begin < n; begin = end) {  // one unit after the other, of any length
    end = std::min(n, begin + 1 + begin % 7919);
    tested_->exact_power_sum(*stream_, x.view().slice(begin, end - begin), 2, many, begin == 0 ? Write::overwrite : Write::accumulate);
  }
  stream_->synchronize();
  EXPECT_TRUE(many.same_bits(whole));
}

/// A sum in double would lose every one of the small numbers.
TEST_P(Exact, NothingIsLost) {
  const std::int64_t n = 4097;
  HostTensor x({n}, DType::f32), limbs = fresh_limbs();
  for (std::int64_t i = 0; i < n; ++i) x.set(i, i == 2000 ? 0x1p40 : 0x1p-40);
  tested_->exact_power_sum(*stream_, x, 2, limbs, Write::overwrite);
  stream_->synchronize();
  HostTensor expected = fresh_limbs();
  for (std::int64_t k = 0; k < ExactSum::kLimbs; ++k) expected.set(k, 0);
  expected.set((80 + 320) / 32, std::ldexp(1.0, (80 + 320) % 32));
  expected.set((320 - 80 + 12) / 32, std::ldexp(1.0, (320 - 80 + 12) % 32));  // 4096 of them
  EXPECT_TRUE(limbs.same_bits(expected));
  EXPECT_EQ(value_of(*tested_, limbs), 0x1p80F);
}

TEST_P(Exact, ExtremesAndNumbersThatAreNone) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto both_sums = [&](const std::vector<double>& values, double p) {
    HostTensor x = HostTensor::of(DType::f32, values);
    Pair limbs(fresh_limbs().shape(), DType::i64);
    both([&](Kernels& kernels, bool r) { kernels.exact_power_sum(*stream_, x, p, limbs.of(r), Write::overwrite); });
    EXPECT_TRUE(limbs.tested.same_bits(limbs.reference));
    return value_of(*tested_, limbs.tested);
  };
  EXPECT_EQ(both_sums({0x1p-149, -0x1p-149}, 1), 0x1p-148F);  // the smallest numbers there are
  EXPECT_EQ(both_sums({0x1p-149, 3.0}, 2), 9.0F);
  EXPECT_EQ(both_sums({0x1.fffffep127, 0x1.fffffep127}, 2), static_cast<float>(inf));
  EXPECT_EQ(both_sums({0x1p60, -0x1p60}, 2), 0x1p121F);
  EXPECT_EQ(both_sums({1.0, inf, 2.0}, 2), static_cast<float>(inf));
  EXPECT_EQ(both_sums({1.0, 0x1p100}, 3), static_cast<float>(inf));
  EXPECT_TRUE(std::isnan(both_sums({1.0, nan, inf}, 2)));
  EXPECT_THROW(tested_->exact_power_sum(*stream_, HostTensor::of(DType::f32, {1}), kInfNorm, fresh_limbs(), Write::overwrite), Error);
}

TEST_P(Exact, FingerprintsAreTheOraclesAndSeeEveryBitAndPlace) {
  HostTensor x = HostTensor::random({50'001}, DType::f32, 4);
  Pair print({1}, DType::i64);
  const auto print_of = [&] {
    both([&](Kernels& kernels, bool r) { kernels.fingerprint(*stream_, x, print.of(r)); });
    EXPECT_TRUE(print.tested.same_bits(print.reference));
    std::int64_t value = 0;
    std::memcpy(&value, print.tested.view().data, sizeof value);
    return value;
  };
  const std::int64_t before = print_of();
  auto* words = static_cast<std::uint32_t*>(x.view().data);
  for (const std::size_t i : {0U, 777U, 50'000U}) {
    for (const int bit : {0, 13, 31}) {
      words[i] ^= 1U << bit;
      EXPECT_NE(print_of(), before) << i << " bit " << bit;
      words[i] ^= 1U << bit;
    }
  }
  std::swap(words[3], words[4]);
  EXPECT_NE(print_of(), before);
  std::swap(words[3], words[4]);
  EXPECT_EQ(print_of(), before);
}

INSTANTIATE_TEST_SUITE_P(Lanes, Exact, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
