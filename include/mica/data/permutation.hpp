// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::data {

/// A random permutation of 0 .. n-1 that needs no memory: position p of epoch e is computed from (seed, e, p) only, so any rank
/// can compute any position, and a resumed run needs no state. How: a Feistel network permutes the next power of two (each
/// round xors one half of the bits with a random function of the other half, which can be undone, so the whole is a bijection);
/// values of n or above are permuted again until they are below n (cycle walking), which is still a bijection on 0 .. n-1.
/// Fewer than two passes on average.
class Permutation {
 public:
  /// @param n  at least 1 and at most 2^62.
  Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch);

  [[nodiscard]] std::int64_t size() const { return n_; }
  /// @param position  in [0, n). @returns a value in [0, n), a different one for every position.
  [[nodiscard]] std::int64_t operator()(std::int64_t position) const;

 private:
  [[nodiscard]] std::uint64_t once(std::uint64_t value) const;

  std::int64_t n_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  int low_bits_;
  int high_bits_;
};

}  // namespace mica::data
