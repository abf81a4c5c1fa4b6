// SPDX-License-Identifier: Apache-2.0
#include "mica/train/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "mica/checkpoint/save.hpp"
#include "mica/plan/largest_fitting.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
/// What a rank's process has without a model: programs, libraries, MPI, heap. docs/planning.md, "Memory, planned and measured".
constexpr std::int64_t kProcessBytes = std::int64_t{35} << 20;

double peak_flops(const Config& config, const plan::Hardware& hardware) {
  return plan::tflops_for(fsdp_options(config).param_dtype(), config.train.tf32, hardware.peak_tflops, hardware) * 1e12;
}

std::int64_t capacity_of(const plan::Hardware& hardware) {
  return static_cast<std::int64_t>((hardware.memory_gib - hardware.reserved_gib) * kGiB);
}

/// What must fit: on CPUs the offload tier takes of the same memory.
std::int64_t bytes_in_use(const DryRun& dry, const Cluster& cluster) {
  return dry.memory.peak + (cluster.hardware.is_gpu ? 0 : dry.offload_peak);
}

/// The time to write a checkpoint. All nodes write at the same time; the one with the most shards finishes last.
double checkpoint_seconds(const Config& config, const Cluster& cluster, const DryRun& dry) {
  const MeshGeometry mesh{.world_size = cluster.num_ranks, .shard_size = dry.shard_size, .replicas = cluster.num_ranks / dry.shard_size};
  const bool is_sharded = config.fsdp.strategy != "no_shard";  // else the first rank writes all
  std::map<int, int> shards_on_node;
  for (int rank = 0; rank < (is_sharded ? cluster.num_ranks : 1); ++rank) {
    if (checkpoint::writes_shard_file(mesh, rank)) ++shards_on_node[rank / cluster.ranks_per_node];
  }
  int most = 0;
  for (const auto& [node, shards] : shards_on_node) most = std::max(most, shards);
  return static_cast<double>(dry.checkpoint_bytes) * most / (cluster.hardware.storage_gb_s * 1e9);
}

/// The time between saves: the shorter of checkpoint.interval and checkpoint.interval_minutes; the best interval if neither is set.
double save_interval_s(const Config::Checkpoint& checkpoint, const Forecast& f) {
  const double by_steps = static_cast<double>(checkpoint.interval) * f.step.seconds, by_clock = checkpoint.interval_minutes * 60;
  if (by_steps > 0 && by_clock > 0) return std::min(by_steps, by_clock);
  return by_steps > 0 ? by_steps : by_clock > 0 ? by_clock : f.best_checkpoint_interval_s;
}

std::int64_t head_dim_of(const Config& config) {
  return config.model.head_dim > 0 ? config.model.head_dim : config.model.width / config.model.heads;
}

/// The cost of checkpoints and failures. A save stops training unless it is in the background; a failure costs half an interval and a
/// restart.
void add_goodput(const Config& config, const Cluster& cluster, Forecast& f) {
  const plan::Hardware& h = cluster.hardware;
  const double mtbf_s = h.rank_mtbf_hours * 3600 / f.num_ranks;
  f.best_checkpoint_interval_s = std::sqrt(2 * f.checkpoint_s * mtbf_s);
  f.saves_at_best_interval = !saves_at_intervals(config);
  const double interval_s = save_interval_s(config.checkpoint, f);
  if (interval_s <= 0) return;
  const double saving = config.checkpoint.async ? 0 : f.checkpoint_s / interval_s;
  const double failing = (interval_s / 2 + h.restart_s) / mtbf_s;
  f.goodput = 1 / (1 + saving) * std::max(0.0, 1 - failing);
}

}  // namespace

Forecast make_forecast(const Config& config, const Cluster& cluster) {
  const plan::Hardware& h = cluster.hardware;
  const DryRun dry = dry_run(config, cluster);
  std::optional<plan::Software> kernels = cluster.software;
  if (!kernels && h.is_gpu) kernels = plan::find_software("mica");
  const std::vector<plan::SimOp> ops = plan::sim_ops(dry.record, h,
                                                     {.ranks_per_node = std::min(cluster.ranks_per_node, cluster.num_ranks),
                                                      .seq_len = config.train.seq_len,
                                                      .head_dim = head_dim_of(config),
                                                      .dtype = fsdp_options(config).param_dtype(),
                                                      .tf32 = config.train.tf32,
                                                      .software = kernels ? &*kernels : nullptr});
  const std::vector<plan::SimStep> steps = plan::simulate(ops, {.num_streams = static_cast<int>(dry.record.streams.size()),
                                                                .compute_stream = dry.compute_stream,
                                                                .host_task_s = h.host_task_us * 1e-6,
                                                                .host_wait_s = h.host_wait_us * 1e-6,
                                                                .inlined = dry.mode == StreamMode::inlined,
                                                                .compute_beside_communication = h.compute_beside_communication,
                                                                .communication_beside_compute = h.communication_beside_compute});
  Forecast f{.software = "mica",
             .strategy = config.fsdp.strategy,
             .num_ranks = cluster.num_ranks,
             .ranks_per_node = cluster.ranks_per_node,
             .num_parameters = dry.num_parameters,
             .batch = batch_on(cluster, config),
             .seq_len = config.train.seq_len,
             .memory = dry.memory,
             .offload_peak = dry.offload_peak,
             .in_use = bytes_in_use(dry, cluster),
             .capacity = capacity_of(h)};
  if (cluster.software) f.software = cluster.software->name;
  if (!h.is_gpu) f.resident = dry.memory.reserved_peak + dry.offload_reserved + kProcessBytes;
  f.shard_size = dry.shard_size;
  f.totals = plan::totals_of(dry.record, static_cast<int>(steps.size()) - 1, std::min(cluster.ranks_per_node, cluster.num_ranks), h.is_gpu);
  f.step = steps.back();
  const auto tokens = static_cast<double>(f.tokens_per_step());
  const double model_flops = 6 * static_cast<double>(f.num_parameters) * tokens + f.totals.model_attention_flops;
  f.tokens_per_s_per_rank = tokens / f.step.seconds;
  f.mfu = model_flops / f.step.seconds / peak_flops(config, h);
  f.hfu = (f.totals.product_flops + f.totals.attention_flops) / f.step.seconds / peak_flops(config, h);
  f.checkpoint_s = checkpoint_seconds(config, cluster, dry);
  add_goodput(config, cluster, f);
  return f;
}

namespace {

/// To plan of a step: one, or two, which stand for more.
int num_micro_batches(const Config& config, const Cluster& cluster) {
  return data::make_batch_plan(config.train.micro_batch, cluster.num_ranks, config.train.global_batch).accumulation > 1 ? 2 : 1;
}

std::int64_t peak_bytes(Config config, const Cluster& cluster, int micro_batches) {
  config.train.global_batch = config.train.micro_batch * cluster.num_ranks * micro_batches;
  return bytes_in_use(dry_run(config, cluster), cluster);
}

}  // namespace

std::int64_t largest_micro_batch(const Config& config, const Cluster& cluster) {
  const auto peak_of = [&, micro_batches = num_micro_batches(config, cluster)](std::int64_t micro_batch) {
    Config tried = config;
    tried.train.micro_batch = micro_batch;
    return peak_bytes(std::move(tried), cluster, micro_batches);
  };
  return plan::largest_fitting(peak_of, capacity_of(cluster.hardware), kLargestTried);
}

std::int64_t fewest_recomputed_blocks(const Config& config, const Cluster& cluster) {
  const std::int64_t blocks = config.model.layers;
  const auto peak_of = [&, micro_batches = num_micro_batches(config, cluster)](std::int64_t kept) {
    Config tried = config;
    tried.fsdp.activation_checkpointing = kept == blocks ? "none" : std::to_string(blocks - kept);
    return peak_bytes(std::move(tried), cluster, micro_batches);
  };
  return blocks - plan::largest_fitting(peak_of, capacity_of(cluster.hardware), blocks);
}

}  // namespace mica::train
