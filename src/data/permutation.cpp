// SPDX-License-Identifier: Apache-2.0
#include "mica/data/permutation.hpp"

#include <bit>

#include "mica/core/error.hpp"
#include "mica/tensor/philox.hpp"

namespace mica::data {
namespace {

/// Changing any of this changes the data order of every shuffled run, so resumed runs would not continue theirs.
constexpr int kRounds = 8;
constexpr std::uint64_t kStreamName = hash_name("data.order");

std::uint64_t low_mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) : n_(n), seed_(seed), epoch_(epoch) {
  invariant(n >= 1 && n <= (std::int64_t{1} << 62), "a permutation has 1 to 2^62 elements");
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));  // 0 for n = 1
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits / 2;
}

std::uint64_t Permutation::once(std::uint64_t value) const {
  std::uint64_t low = value & low_mask(low_bits_);
  std::uint64_t high = value >> low_bits_;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const bool changes_low = round % 2 == 0;
    const auto random = random_block(RandomKey{seed_, epoch_, round, kStreamName}, changes_low ? high : low);
    if (changes_low) {
      low ^= random[0] & low_mask(low_bits_);
    } else {
      high ^= random[0] & low_mask(high_bits_);
    }
  }
  return (high << low_bits_) | low;
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  invariant(position >= 0 && position < n_, "a position is below the permutation's size");
  auto value = static_cast<std::uint64_t>(position);
  do {
    value = once(value);
  } while (value >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(value);
}

}  // namespace mica::data
