// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/tensor/random.hpp"

namespace mica::generate {
namespace {

void refuse_nan(float value) { require<Error>(!std::isnan(value), "the model's logits are NaN: its parameters are, or overflow in bf16"); }

/// Lowers the scores of tokens that occurred before.
void penalise(std::span<float> scores, std::span<const std::int32_t> before, double penalty) {
  const auto factor = static_cast<float>(penalty);
  for (const std::int32_t id : std::unordered_set<std::int32_t>(before.begin(), before.end())) {
    float& score = scores[static_cast<std::size_t>(id)];
    score = score > 0 ? score / factor : score * factor;
  }
}

/// The k-th largest.
float threshold_of(std::span<const float> scores, std::int64_t k) {
  std::vector<float> sorted(scores.begin(), scores.end());
  const auto kth = sorted.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  return *kth;
}

/// Sets all weights to zero except the largest ones that together reach p.
void keep_top_p(std::span<double> weights, double p) {
  double total = 0;
  for (const double weight : weights) total += weight;
  // All weights below this sum to less than 1 - p of the total, so none of them is needed.
  const double lightest = (1 - p) * total / static_cast<double>(weights.size());
  std::vector<std::size_t> order;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0 && weights[id] >= lightest) order.push_back(id);
  }
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::vector<double> kept(weights.size(), 0.0);
  double sum = 0;
  for (const std::size_t id : order) {
    kept[id] = weights[id];
    sum += weights[id];
    if (sum >= p * total) break;
  }
  std::ranges::copy(kept, weights.begin());
}

}  // namespace

void SamplingOptions::validate() const {
  require<ConfigError>(temperature >= 0 && std::isfinite(temperature), "--temperature is {}, expected 0 (the likeliest token) or more",
                       temperature);
  require<ConfigError>(top_k >= 0, "--top-k is {}, expected a number of tokens, or 0 for all", top_k);
  require<ConfigError>(top_p > 0 && top_p <= 1, "--top-p is {}, expected a probability above 0, up to 1", top_p);
  require<ConfigError>(repetition_penalty > 0 && std::isfinite(repetition_penalty),
                       "--repetition-penalty is {}, expected a number above 0; 1 is none", repetition_penalty);
}

double random_fraction(const DrawPoint& point) {
  const RandomKey key{.seed = point.seed, .step = point.position, .sequence = point.sequence, .name_hash = hash_name("generate.token")};
  const std::uint64_t bits = (std::uint64_t{random_word(key, 0)} << 32 | random_word(key, 1)) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

std::int32_t likeliest(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > logits[best] || logits[id] != logits[id]) best = id;  // once a NaN is best it stays, since nothing compares larger
  }
  refuse_nan(logits[best]);
  return static_cast<std::int32_t>(best);
}

std::int32_t choose_token(std::span<const float> logits, std::span<const std::int32_t> before, const SamplingOptions& options,
                          double fraction) {
  std::vector<float> scores(logits.begin(), logits.end());
  if (options.repetition_penalty != 1) penalise(scores, before, options.repetition_penalty);
  const std::int32_t best = likeliest(scores);
  if (options.temperature == 0) return best;
  const bool is_cut = options.top_k > 0 && options.top_k < std::ssize(scores);
  const float least = is_cut ? threshold_of(scores, options.top_k) : -INFINITY;
  const float max = scores[static_cast<std::size_t>(best)];
  const auto inverse = static_cast<float>(1 / options.temperature);
  std::vector<double> weights(scores.size());
  for (std::size_t id = 0; id < scores.size(); ++id) {
    weights[id] = scores[id] < least ? 0.0 : static_cast<double>(std::exp((scores[id] - max) * inverse));
  }
  if (options.top_p < 1) keep_top_p(weights, options.top_p);
  double total = 0;
  for (const double weight : weights) total += weight;
  double sum = 0;
  std::int32_t last = best;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    last = static_cast<std::int32_t>(id);
    sum += weights[id];
    if (sum > fraction * total) break;
  }
  return last;
}

}  // namespace mica::generate
