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
  return fmt::format("{} (accumulation {}) or {} (accumulation {})", rounds * unit, rounds, (rounds + 1) * unit,
                     rounds + 1);
}

/// The micro-batches that divide global_batch / num_ranks and are nearest to the one asked for, as "; or ...".
std::string micro_batches_near(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch) {
  if (global_batch % num_ranks != 0) return "";
  const std::int64_t per_rank = global_batch / num_ranks;
  std::int64_t below = micro_batch < per_rank ? micro_batch : per_rank;
  while (per_rank % below != 0) --below;
  std::int64_t above = micro_batch;
  while (above < per_rank && per_rank % above != 0) ++above;
  if (above <= below || above > per_rank) return fmt::format("; or keep it with train.micro_batch={}", below);
  return fmt::format("; or keep it with train.micro_batch={} or {}", below, above);
}

/// The numbers of ranks that divide global_batch / micro_batch and are nearest to this one, as "; or keep it on ...".
std::string ranks_near(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch) {
  if (global_batch % micro_batch != 0) return "";
  const std::int64_t num_micro_batches = global_batch / micro_batch;
  std::int64_t below = std::min(num_ranks, num_micro_batches);
  while (num_micro_batches % below != 0) --below;
  std::int64_t above = num_ranks;
  while (above < num_micro_batches && num_micro_batches % above != 0) ++above;
  const bool has_above = above > below && above <= num_micro_batches;
  return fmt::format("; or keep it on {}{} ranks", below, has_above ? fmt::format(" or {}", above) : "");
}

}  // namespace

BatchPlan make_batch_plan(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch) {
  require<ConfigError>(micro_batch >= 1 && micro_batch < kMaxBatch,
                       "train.micro_batch={} was given, expected 1 to 2^31", micro_batch);
  require<ConfigError>(num_ranks >= 1 && num_ranks < kMaxBatch, "{} data-parallel ranks, expected at least 1",
                       num_ranks);
  require<ConfigError>(
      global_batch >= 0 && global_batch < kMaxBatch,
      "train.global_batch={} was given, expected 1 to 2^31 sequences a step (or 0: micro_batch x ranks)", global_batch);
  const std::int64_t unit = micro_batch * num_ranks;
  require<ConfigError>(unit < kMaxBatch,
                       "train.micro_batch={} on {} ranks makes {} sequences a round, expected less than 2^31",
                       micro_batch, num_ranks, unit);
  if (global_batch == 0) return {micro_batch, 1, num_ranks};
  if (global_batch % unit != 0) {
    throw ConfigError(
        fmt::format("train.global_batch={} is not a multiple of train.micro_batch x ranks = {} x {} = {}; "
                    "valid values near it: {}{}{}",
                    global_batch, micro_batch, num_ranks, unit, multiples_near(global_batch, unit),
                    micro_batches_near(micro_batch, num_ranks, global_batch), ranks_near(micro_batch, num_ranks, global_batch)));
  }
  return {micro_batch, global_batch / unit, num_ranks};
}

}  // namespace mica::data
