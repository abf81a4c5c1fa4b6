// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace mica::generate {

/// How the next token is chosen. Names and order of the steps are those of transformers' generate(): penalty, temperature, top_k,
/// top_p.
struct SamplingOptions {
  double temperature = 0;         ///< 0: the likeliest token (the first if several are equal); otherwise logits are divided by it
  std::int64_t top_k = 0;         ///< only the k likeliest tokens, and those as likely as the k-th; 0: all
  double top_p = 1;               ///< of those, the smallest set of likeliest tokens whose probabilities reach p
  double repetition_penalty = 1;  ///< for tokens that occurred before: logits above 0 are divided by it, others multiplied by it
  std::uint64_t seed = 1;

  /// @throws ConfigError naming the flag, its value and what is expected.
  void validate() const;
};

/// Identifies a random number. It does not depend on the batch or the number of ranks.
struct DrawPoint {
  std::uint64_t seed = 0;
  std::uint64_t sequence = 0;  ///< number of the prompt
  std::uint64_t position = 0;  ///< of the token to choose, in its sequence
};
/// A random number in (0, 1).
[[nodiscard]] double random_fraction(const DrawPoint& point);

/// Draws a token: the first at which the running sum of probabilities, in the order of ids, passes `fraction`.
/// @param logits  [vocab]  @param before  the sequence so far, prompt included  @throws Error if a logit is NaN.
[[nodiscard]] std::int32_t choose_token(std::span<const float> logits, std::span<const std::int32_t> before, const SamplingOptions& options,
                                        double fraction);

/// The index of the largest logit, the first if several are equal. @throws Error if one is NaN.
[[nodiscard]] std::int32_t likeliest(std::span<const float> logits);

}  // namespace mica::generate
