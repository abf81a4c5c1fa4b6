// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/plan/simulator.hpp"
#include "mica/plan/step_cost.hpp"
#include "mica/train/cluster.hpp"

namespace mica::train {

/// The forecast of a run; figures are per rank unless stated.
struct Forecast {
  std::string software = "mica";  ///< whose kernels were timed
  std::string strategy;           ///< fsdp.strategy
  int num_ranks = 1, ranks_per_node = 1, shard_size = 1;
  std::int64_t num_parameters = 0;
  data::BatchPlan batch;
  std::int64_t seq_len = 0;
  MemoryStats memory;  ///< peaks
  std::int64_t offload_peak = 0;
  std::int64_t in_use = 0;    ///< what must fit into capacity: the peak, and on CPUs the offload tier as well
  std::int64_t capacity = 0;  ///< bytes available to a rank
  std::int64_t resident = 0;  ///< of a rank's process, as the operating system counts it; on CPUs only
  plan::StepTotals totals;
  plan::SimStep step;  ///< a step in the middle of a run
  double mfu = 0;      ///< 6 N + 12 L H Q T FLOPs a token (PaLM, arXiv:2204.02311, appendix B) over the vendor's peak
  double hfu = 0;      ///< all FLOPs computed, recomputation included, over the same peak
  double tokens_per_s_per_rank = 0;
  double checkpoint_s = 0;  ///< to write one
  /// The interval that loses the least time to saves and failures (Young, 1974): sqrt(2 x save x time between failures).
  double best_checkpoint_interval_s = 0;
  bool saves_at_best_interval = false;  ///< as goodput has it, since the config has no interval
  /// Share of the time that is not lost to saves and failures, with the config's interval or else the best one.
  double goodput = 0;

  /// Share of the FLOPs computed. (Not 1 - mfu / hfu: MFU counts all scores of attention, HFU only those that causal attention computes.)
  [[nodiscard]] double recomputed() const { return totals.recomputed_flops / (totals.product_flops + totals.attention_flops); }
  [[nodiscard]] bool fits() const { return in_use <= capacity; }
  [[nodiscard]] std::int64_t tokens_per_step() const { return batch.micro_batch * batch.accumulation * seq_len; }  ///< per rank
};

/// Simulates a dry run on the cluster. @throws ConfigError as dry_run()
[[nodiscard]] Forecast make_forecast(const Config& config, const Cluster& cluster);

/// A plan's work grows with the micro-batch, so larger ones are not tried.
inline constexpr std::int64_t kLargestTried = 1 << 14;
/// The largest train.micro_batch, up to kLargestTried, whose peak fits; 0 if none does. Plans one or two micro-batches per step, as many as
/// the config has (two stand for more).
[[nodiscard]] std::int64_t largest_micro_batch(const Config& config, const Cluster& cluster);
/// The fewest blocks to recompute (fsdp.activation_checkpointing) so that the config's micro-batch fits; 0: none need be. As many
/// as the model has if no fewer are enough; whether it fits then is not checked.
[[nodiscard]] std::int64_t fewest_recomputed_blocks(const Config& config, const Cluster& cluster);

}  // namespace mica::train
