// SPDX-License-Identifier: Apache-2.0
#include "advice.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "mica/plan/memory_plan.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {
namespace {

struct Way {
  std::string strategy;
  std::string shard_size;
};

std::vector<Way> ways_to_shard(const Cluster& cluster) {
  std::vector<Way> ways{{"full_shard", "world"}, {"shard_grad_op", "world"}, {"no_shard", "world"}};
  const int node = cluster.ranks_per_node;
  // Shard groups of one node, then of 4 and 16 nodes, as long as at least two replicas are left.
  for (int size = node; size < cluster.num_ranks && size <= 16 * node; size *= 4) {
    if (size < 2 || cluster.num_ranks % size != 0) continue;
    ways.push_back({"hybrid_shard", std::to_string(size)});
    ways.push_back({"hybrid_shard_zero2", std::to_string(size)});
  }
  return ways;
}

/// The largest micro-batch that fits and divides the global batch, if any.
std::optional<std::int64_t> micro_batch_for(Config config, const Cluster& cluster) {
  const std::int64_t global = config.train.global_batch, per_rank = global / cluster.num_ranks;
  const std::int64_t least = global == 0 || may_accumulate(config) ? 1 : per_rank;
  config.train.micro_batch = least;
  const std::int64_t most = largest_micro_batch(config, cluster);
  if (most == 0) return std::nullopt;
  if (global == 0) return most;
  for (std::int64_t b = std::min(most, per_rank); b >= least; --b) {
    if (per_rank % b == 0) return b;
  }
  return std::nullopt;
}

}  // namespace

Advice find_choices(const Config& config, const Cluster& cluster) {
  require<ConfigError>(config.train.global_batch % cluster.num_ranks == 0,
                       "train.global_batch = {} is not a multiple of the {} ranks: choose a multiple, or 0 to let --advise choose",
                       config.train.global_batch, cluster.num_ranks);
  Advice advice;
  for (const Way& way : ways_to_shard(cluster)) {
    for (const char* wrap : {"block", "none"}) {
      // With one unit for the whole model no all-gather overlaps with computation. So try it only where few or no all-gathers are needed.
      if (std::string_view(wrap) == "none" && way.strategy != "no_shard" && way.strategy != "shard_grad_op") continue;
      for (const char* checkpointing : {"none", "block"}) {
        Config tried = config;
        tried.fsdp.strategy = way.strategy;
        tried.fsdp.reshard_after_forward = "auto";
        tried.mesh.shard_size = way.shard_size;
        tried.fsdp.wrap = wrap;
        tried.fsdp.activation_checkpointing = checkpointing;
        std::string keys = fmt::format("--fsdp.strategy={} --mesh.shard_size={} --fsdp.wrap={} --fsdp.activation_checkpointing={}",
                                       way.strategy, way.shard_size, wrap, checkpointing);
        if (config.fsdp.reshard_after_forward != "auto") keys += " --fsdp.reshard_after_forward=auto";
        try {
          const std::optional<std::int64_t> micro_batch = micro_batch_for(tried, cluster);
          if (!micro_batch) {
            ++advice.num_too_large;
            continue;
          }
          tried.train.micro_batch = *micro_batch;
          keys += fmt::format(" --train.micro_batch={}", *micro_batch);
          advice.choices.push_back({keys, make_forecast(tried, cluster)});
        } catch (const ConfigError& error) {
          advice.refused.push_back({keys, error.what()});
        }
      }
    }
  }
  std::ranges::stable_sort(advice.choices, std::ranges::greater{}, [](const Choice& c) { return c.forecast.tokens_per_s_per_rank; });
  return advice;
}

std::string why(const Forecast& f) {
  const plan::SimStep& step = f.step;
  const double computing = step.compute_busy / step.seconds, exposed = step.exposed / step.seconds;
  const double recomputed = f.recomputed();
  std::string text = fmt::format(
      "computes for {:.0f} % of the time and waits for communication for {:.0f} "
      "%",
      100 * computing, 100 * exposed);
  if (recomputed > 0.05) text += fmt::format("; {:.0f} % of its FLOPs are recomputed", 100 * recomputed);
  text += fmt::format("; holds {} of {}", plan::format_bytes(f.memory.peak), plan::format_bytes(f.capacity));
  return text;
}

}  // namespace mica::train
