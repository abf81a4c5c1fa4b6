// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/rotary.hpp"

#include <cmath>
#include <numbers>

#include "mica/core/error.hpp"

namespace mica::nn {

void RotaryOptions::validate() const {
  require<ConfigError>(theta > 0, "model.rope_theta is {}, expected a positive number", theta);
  if (scaling == Scaling::none) return;
  require<ConfigError>(factor >= 1, "model.rope_factor is {}, expected 1 or more: scaling divides frequencies by it", factor);
  require<ConfigError>(low_freq_factor > 0, "model.rope_low_freq_factor is {}, expected a positive number", low_freq_factor);
  require<ConfigError>(high_freq_factor > low_freq_factor,
                       "model.rope_high_freq_factor is {}, expected more than model.rope_low_freq_factor, which is {}", high_freq_factor,
                       low_freq_factor);
  require<ConfigError>(original_context > 0, "model.rope_original_context is {}, expected the context before scaling", original_context);
}

namespace {

double llama3_scaled(const RotaryOptions& options, double frequency) {
  const double turns = static_cast<double>(options.original_context) * frequency / (2 * std::numbers::pi);
  if (turns < options.low_freq_factor) return frequency / options.factor;
  if (turns > options.high_freq_factor) return frequency;
  const double kept = (turns - options.low_freq_factor) / (options.high_freq_factor - options.low_freq_factor);
  return (1 - kept) * frequency / options.factor + kept * frequency;
}

}  // namespace

std::vector<double> rotary_frequencies(const RotaryOptions& options, std::int64_t head_dim) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency = std::pow(options.theta, -2 * static_cast<double>(i) / static_cast<double>(head_dim));
    frequencies.push_back(options.scaling == RotaryOptions::Scaling::llama3 ? llama3_scaled(options, frequency) : frequency);
  }
  return frequencies;
}

}  // namespace mica::nn
