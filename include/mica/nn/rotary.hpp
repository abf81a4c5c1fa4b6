// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace mica::nn {

/// Angles by which a rotary position embedding rotates the pairs of a head's channels at each position.
struct RotaryOptions {
  double theta = 10000;  ///< pair i of n is rotated by position * theta^(-i/n)
  enum class Scaling : std::uint8_t { none, llama3 } scaling = Scaling::none;
  /// Llama 3.1's scaling. Frequencies with fewer than low_freq_factor rotations within original_context tokens are divided by
  /// `factor`; those with more than high_freq_factor rotations are not scaled; the ones between are interpolated.
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_context = 8192;

  /// @throws ConfigError naming the key, its value and what is expected.
  void validate() const;
};

/// Radians per position, for each of the head_dim / 2 pairs. head_dim is even.
[[nodiscard]] std::vector<double> rotary_frequencies(const RotaryOptions& options, std::int64_t head_dim);

}  // namespace mica::nn
