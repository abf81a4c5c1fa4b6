// SPDX-License-Identifier: Apache-2.0
#include "plan_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mica/plan/memory_plan.hpp"
#include "mica/train/progress.hpp"

namespace mica::train {
namespace {

double ms(double seconds) { return seconds * 1e3; }
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }
std::string bytes_text(double bytes) { return plan::format_bytes(static_cast<std::int64_t>(bytes)); }

std::string what_is_sharded(const Forecast& f) {
  if (f.strategy == "no_shard") return fmt::format("whole on each of {} ranks", f.num_ranks);
  const std::string over = fmt::format("sharded over {} ranks, {} replicas", f.shard_size, f.num_ranks / f.shard_size);
  return f.strategy == "shard_optim" ? "whole on each rank; optimizer state " + over : over;
}

}  // namespace

std::string left_out_of_step(const Forecast& f, const plan::Hardware& h) {
  if (!h.is_gpu || f.offload_peak == 0) return "";
  return "what fsdp.cpu_offload adds: copies between GPU and host, and the host's work; real steps take longer";
}

std::string forecast_table(const Forecast& f, const plan::Hardware& h, std::int64_t largest) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("{:<22} {}\n", name, value); };
  line("cluster", fmt::format("{} ranks, {} per node, {}, {:g} Gb/s per node", f.num_ranks, f.ranks_per_node, h.name, h.network_gbps));
  if (f.software != "mica") line("kernels", fmt::format("of {}; the schedule, memory and counts are Mica's", f.software));
  line("model", fmt::format("{} parameters, {}", f.num_parameters, what_is_sharded(f)));
  line("batch", fmt::format("{} sequences of {} tokens per step = micro-batch {} x accumulation {} x {} ranks", f.batch.global_batch(),
                            f.seq_len, f.batch.micro_batch, f.batch.accumulation, f.num_ranks));
  text += '\n';
  line("step", fmt::format("{:.1f} ms", ms(f.step.seconds)));
  line("  computes", fmt::format("{:.1f} ms ({:.0f} %)", ms(f.step.compute_busy), percent(f.step.compute_busy, f.step.seconds)));
  line("  communicates", fmt::format("{:.1f} ms, of which {:.1f} ms ({:.0f} % of the step) exposed", ms(f.step.communication_busy),
                                     ms(f.step.exposed), percent(f.step.exposed, f.step.seconds)));
  line("  host waits", fmt::format("{:.1f} ms", ms(f.step.host_waits)));
  const std::string left_out = left_out_of_step(f, h);
  if (!left_out.empty()) line("  left out", left_out);
  line("tokens/s per rank", format_rate(f.tokens_per_s_per_rank));
  line("tokens/s", format_rate(f.tokens_per_s_per_rank * f.num_ranks));
  line("MFU", fmt::format("{:.1f} % (the model's FLOPs, with all attention scores)", 100 * f.mfu));
  line("HFU", fmt::format("{:.1f} % (the FLOPs computed, {:.0f} % of them in recomputation)", 100 * f.hfu, 100 * f.recomputed()));
  line("FLOPs per rank, step", fmt::format("{:.4g} in products, {:.4g} in attention", f.totals.product_flops, f.totals.attention_flops));
  line("sent per rank, step",
       fmt::format("{} inside the node, {} to other nodes", bytes_text(f.totals.sent_in_node), bytes_text(f.totals.sent_to_network)));
  text += '\n';
  line("memory per rank", fmt::format("{} at its peak, of {} ({})", plan::format_bytes(f.memory.peak), plan::format_bytes(f.capacity),
                                      f.fits() ? "fits" : "does NOT fit"));
  for (std::size_t role = 0; role < kNumMemoryRoles; ++role) {
    if (f.memory.peak_by_role[role] == 0) continue;
    line(fmt::format("  {}", memory_role_name(static_cast<MemoryRole>(role))), plan::format_bytes(f.memory.peak_by_role[role]));
  }
  if (f.offload_peak > 0) line("  offload tier", plan::format_bytes(f.offload_peak) + " of host memory");
  if (f.resident > 0) line("  resident", plan::format_bytes(f.resident) + ", as the operating system counts it");
  if (largest >= 0) {
    line("largest micro-batch", largest == 0 ? "none fits" : fmt::format("{}{}", largest, largest == kLargestTried ? " or more" : ""));
  }
  text += '\n';
  line("checkpoint",
       fmt::format("{:.1f} s to write; the best interval is {}", f.checkpoint_s, format_duration(f.best_checkpoint_interval_s)));
  line("goodput", fmt::format("{:.1f} % of the time, after saves and failures{}", 100 * f.goodput,
                              f.saves_at_best_interval ? ", if saved at that interval: the config names none" : ""));
  return text;
}

std::string forecast_json(const Forecast& f, const plan::Hardware& h, std::int64_t largest) {
  nlohmann::ordered_json roles;
  for (std::size_t role = 0; role < kNumMemoryRoles; ++role) {
    roles[std::string(memory_role_name(static_cast<MemoryRole>(role)))] = f.memory.peak_by_role[role];
  }
  nlohmann::ordered_json json{{"hardware", h.name},
                              {"software", f.software},
                              {"ranks", f.num_ranks},
                              {"ranks_per_node", f.ranks_per_node},
                              {"node_gbps", h.network_gbps},
                              {"strategy", f.strategy},
                              {"shard_size", f.shard_size},
                              {"parameters", f.num_parameters},
                              {"micro_batch", f.batch.micro_batch},
                              {"accumulation", f.batch.accumulation},
                              {"global_batch", f.batch.global_batch()},
                              {"seq_len", f.seq_len},
                              {"step_ms", ms(f.step.seconds)},
                              {"compute_ms", ms(f.step.compute_busy)},
                              {"comm_ms", ms(f.step.communication_busy)},
                              {"exposed_comm_ms", ms(f.step.exposed)},
                              {"host_wait_ms", ms(f.step.host_waits)},
                              {"tokens_per_s_per_rank", f.tokens_per_s_per_rank},
                              {"tokens_per_s", f.tokens_per_s_per_rank * f.num_ranks},
                              {"mfu", f.mfu},
                              {"hfu", f.hfu},
                              {"product_flops", f.totals.product_flops},
                              {"attention_flops", f.totals.attention_flops},
                              {"sent_in_node_bytes", f.totals.sent_in_node},
                              {"sent_to_network_bytes", f.totals.sent_to_network},
                              {"kernels", f.totals.num_kernels},
                              {"collectives", f.totals.num_collectives},
                              {"peak_bytes", f.memory.peak},
                              {"capacity_bytes", f.capacity},
                              {"fits", f.fits()},
                              {"peak_bytes_by_role", roles},
                              {"offload_bytes", f.offload_peak},
                              {"checkpoint_s", f.checkpoint_s},
                              {"best_checkpoint_interval_s", f.best_checkpoint_interval_s},
                              {"goodput", f.goodput}};
  if (f.resident > 0) json["resident_bytes"] = f.resident;
  if (const std::string left_out = left_out_of_step(f, h); !left_out.empty()) json["left_out"] = left_out;
  if (largest >= 0) json["largest_micro_batch"] = largest;
  return json.dump(1) + "\n";
}

}  // namespace mica::train
