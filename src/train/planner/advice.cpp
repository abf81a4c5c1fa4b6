// SPDX-License-Identifier: Apache-2.0
#include "advice.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "mica/plan/memory_plan.hpp"
#include "mica/train/setup.hpp"

#include "../idle_keys.hpp"

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

/// The smallest micro-batch that may be advised.
std::int64_t least_micro_batch(const Config& config, const Cluster& cluster) {
  const std::int64_t global = config.train.global_batch;
  return global == 0 || may_accumulate(config) ? 1 : global / cluster.num_ranks;
}

/// The largest micro-batch that fits and divides the global batch; 0: none.
std::int64_t micro_batch_for(Config config, const Cluster& cluster) {
  const std::int64_t global = config.train.global_batch, per_rank = global / cluster.num_ranks;
  const std::int64_t least = least_micro_batch(config, cluster);
  config.train.micro_batch = least;
  const std::int64_t most = largest_micro_batch(config, cluster);
  if (global == 0) return most;
  for (std::int64_t b = std::min(most, per_rank); b >= least; --b) {
    if (per_rank % b == 0) return b;
  }
  return 0;
}

/// One strategy with one way to cut the model into units.
class Trial {
 public:
  Trial(const Config& config, const Cluster& cluster, const Way& way, const std::string& wrap, Advice& advice)
      : config_(config), cluster_(cluster), advice_(advice) {
    keys_ = fmt::format("--fsdp.strategy={} --mesh.shard_size={} --fsdp.wrap={}", way.strategy, way.shard_size, wrap);
    if (config.fsdp.reshard_after_forward != "auto") keys_ += " --fsdp.reshard_after_forward=auto";
    config_.fsdp.strategy = way.strategy;
    config_.fsdp.reshard_after_forward = "auto";
    config_.mesh.shard_size = way.shard_size;
    config_.fsdp.wrap = wrap;
    for (const std::string& flag : reset_idle_keys(config_)) keys_ += " " + flag;
  }

  /// Without and with activation checkpointing. Where nothing fits without, also in as few blocks as the smallest micro-batch needs.
  void run() {
    const bool fits = try_checkpointing("none"), fits_recomputed = try_checkpointing("block");
    if (fits || !fits_recomputed) return;
    config_.train.micro_batch = least_micro_batch(config_, cluster_);
    const std::int64_t fewest = fewest_recomputed_blocks(config_, cluster_);
    if (fewest > 0 && fewest < config_.model.layers) add(std::to_string(fewest), config_.train.micro_batch);
  }

 private:
  /// @returns whether a micro-batch fits
  bool try_checkpointing(const std::string& value) {
    try {
      config_.fsdp.activation_checkpointing = value;
      const std::int64_t micro_batch = micro_batch_for(config_, cluster_);
      if (micro_batch == 0) {
        ++advice_.num_too_large;
        return false;
      }
      add(value, micro_batch);
      return true;
    } catch (const ConfigError& error) {
      advice_.refused.push_back({with(value), error.what()});
      return false;
    }
  }

  void add(const std::string& checkpointing, std::int64_t micro_batch) {
    config_.fsdp.activation_checkpointing = checkpointing;
    config_.train.micro_batch = micro_batch;
    advice_.choices.push_back(
        {fmt::format("{} --train.micro_batch={}", with(checkpointing), micro_batch), make_forecast(config_, cluster_)});
  }

  [[nodiscard]] std::string with(const std::string& checkpointing) const {
    return fmt::format("{} --fsdp.activation_checkpointing={}", keys_, checkpointing);
  }

  Config config_;
  const Cluster& cluster_;
  std::string keys_;
  Advice& advice_;
};

}  // namespace

Advice find_choices(const Config& config, const Cluster& cluster) {
  require<ConfigError>(config.train.global_batch % cluster.num_ranks == 0,
                       "train.global_batch = {} is not a multiple of the {} ranks: choose a multiple, or 0 to let --advise choose",
                       config.train.global_batch, cluster.num_ranks);
  Advice advice;
  for (const Way& way : ways_to_shard(cluster)) {
    for (const std::string wrap : {"block", "none"}) {
      // With one unit for the whole model no all-gather overlaps with computation. So try it only where few or no all-gathers are needed.
      if (wrap == "none" && way.strategy != "no_shard" && way.strategy != "shard_grad_op") continue;
      Trial(config, cluster, way, wrap, advice).run();
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
