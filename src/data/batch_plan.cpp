// SPDX-License-Identifier: Apache-2.0
#include "mica/data/batch_plan.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "mica/core/error.hpp"

namespace mica::data {
namespace {

constexpr std::int64_t kMaxBatch = std::int64_t{1} << 31;

/// The multiples of `unit` around `value`, at least one unit, as "96 (accumulation 4) or 120 (accumulation 5)".
std::string multiples_near(std::int64_t value, std::int64_t unit) {
  const std::int64_t rounds = value / unit;
  if (rounds < 1) return fmt::format("{} (accumulation 1)", unit);
  return fmt::format("{} (accumulation {}) or {} (accumulation {})", rounds * unit, rounds, (rounds + 1) * unit, rounds + 1);
}

/// "3", "3 or 6": the divisors of `whole` nearest to `value`, at least one.
std::string divisors_near(std::int64_t value, std::int64_t whole) {
  std::int64_t below = std::min(value, whole);
  while (whole % below != 0) --below;
  std::int64_t above = value;
  while (above < whole && whole % above != 0) ++above;
  return above > below && above <= whole ? fmt::format("{} or {}", below, above) : std::to_string(below);
}

}  // namespace

std::string ways_to_keep_batch(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch) {
  std::string ways;
  if (global_batch % num_ranks == 0) {
    ways = fmt::format("with train.micro_batch={}", divisors_near(micro_batch, global_batch / num_ranks));
  }
  if (global_batch % micro_batch == 0) {
    ways += fmt::format("{}on {} ranks", ways.empty() ? "" : ", or ", divisors_near(num_ranks, global_batch / micro_batch));
  }
  return ways;
}

BatchPlan make_batch_plan(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch) {
  require<ConfigError>(micro_batch >= 1 && micro_batch < kMaxBatch, "train.micro_batch={} was given, expected 1 to 2^31", micro_batch);
  require<ConfigError>(num_ranks >= 1 && num_ranks < kMaxBatch, "{} data-parallel ranks, expected at least 1", num_ranks);
  require<ConfigError>(global_batch >= 0 && global_batch < kMaxBatch,
                       "train.global_batch={} was given, expected 1 to 2^31 sequences a step (or 0: micro_batch x ranks)", global_batch);
  const std::int64_t unit = micro_batch * num_ranks;
  require<ConfigError>(unit < kMaxBatch, "train.micro_batch={} on {} ranks makes {} sequences a round, expected less than 2^31",
                       micro_batch, num_ranks, unit);
  if (global_batch == 0) return {micro_batch, 1, num_ranks};
  if (global_batch % unit != 0) {
    const std::string ways = ways_to_keep_batch(micro_batch, num_ranks, global_batch);
    throw ConfigError(fmt::format(
        "train.global_batch={} is not a multiple of train.micro_batch x ranks = {} x {} = {}; "
        "valid values near it: {}{}{}",
        global_batch, micro_batch, num_ranks, unit, multiples_near(global_batch, unit), ways.empty() ? "" : "; or keep it ", ways));
  }
  return {micro_batch, global_batch / unit, num_ranks};
}

}  // namespace mica::data
