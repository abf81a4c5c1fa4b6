// SPDX-License-Identifier: Apache-2.0
// What a run prints before its first step, and what it warns of then.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "mica/core/version.hpp"
#include "mica/fsdp/replica_drift.hpp"
#include "mica/train/trainer.hpp"

namespace mica::train {
namespace {

/// [Note: roundings of dw] holds for micro-batches that add up in bf16, too.
constexpr std::int64_t kMostRoundedSums = 16;

/// "step 700", "steps 700 to 900 (3 checkpoints)"
std::string steps_text(const std::vector<std::int64_t>& newest_first) {
  if (newest_first.size() == 1) return fmt::format("step {}", newest_first.front());
  return fmt::format("steps {} to {} ({} checkpoints)", newest_first.back(), newest_first.front(), newest_first.size());
}

}  // namespace

void Trainer::print_start(IniKeys keys, const std::function<void(const std::string&)>& say) const {
  if (!is_main()) return;
  say(fmt::format("mica-train {}", full_version()));
  for (const auto& [old_name, name] : config_.old_names) {
    logger_.warn("the key {} is now called {}; the old name still works, but use the new one", old_name, name);
  }
  say(to_ini(config_, keys));
  if (keys == IniKeys::changed)
    say(fmt::format("config   other keys have their defaults; all of them: {}/config.resolved.cfg", config_.run_folder()));
  say(fmt::format("data     {} tokens, {} sequences of {} tokens{}", datasets_.train.num_tokens(), datasets_.train.num_sequences(),
                  config_.train.seq_len,
                  datasets_.val ? fmt::format("; validation {} tokens", datasets_.val->num_tokens()) : "; no validation"));
  for (const std::string& warning : data::warnings_of_repeated_files(datasets_.train, datasets_.val ? &*datasets_.val : nullptr)) {
    logger_.warn("{}", warning);
  }
  say(fmt::format(
      "batch    {} sequences a step = micro_batch {} x accumulation {} x {} ranks; {} tokens a step, {:.2f} epochs in "
      "{} steps",
      plan_.global_batch(), plan_.micro_batch, plan_.accumulation, plan_.num_ranks, plan_.global_batch() * config_.train.seq_len,
      static_cast<double>(plan_.global_batch() * config_.train.steps) / static_cast<double>(datasets_.train.num_sequences()),
      config_.train.steps));
  if (start_point_.manifest) {
    say(fmt::format("start    resumes from {}, step {}{}", start_point_.checkpoint, start_point_.manifest->step,
                    start_point_.num_later == 0
                        ? ""
                        : fmt::format("; later checkpoints of this run ({}) will be set aside, not deleted", start_point_.num_later)));
    for (const std::string& damage : start_point_.damaged) logger_.warn("a newer checkpoint is passed over: {}", damage);
    if (!start_point_.passed_over.empty()) {
      logger_.warn("newer checkpoints hold the model only, without the optimizer state, and cannot be resumed: {}",
                   steps_text(start_point_.passed_over));
    }
    if (plan_.micro_batch != config_.train.micro_batch) {
      logger_.warn("train.micro_batch = {} does not fit the checkpoint's {} sequences a step on {} ranks: this launch takes {}",
                   config_.train.micro_batch, plan_.global_batch(), plan_.num_ranks, plan_.micro_batch);
    }
    if (start_point_.manifest->diverged) {
      logger_.warn(
          "a parameter, or the loss or gradient norm of step {} or the next one, was NaN or infinite, and may stay so: "
          "--checkpoint.resume=FOLDER resumes from an "
          "earlier checkpoint; "
          "mica-inspect {} lists them",
          start_point_.manifest->step, config_.run_folder());
    }
    for (const std::string& change : continuation_.changes) logger_.warn("changed since the checkpoint: {}", change);
  }
  if (time_limit_.is_set()) say(fmt::format("limit    {}", time_limit_.description(Clock::now() - start_)));
  if (!time_limit_.warning().empty()) logger_.warn("{}", time_limit_.warning());
  warn_of_no_checkpoints();
  say(device_.mesh->describe());
  say(fmt::format("device   {}", device_.describe()));
  if (device_.backend == "shared") {
    const auto num_units = std::ranges::count_if(model_.root->units(), [](const fsdp::Unit* unit) { return unit->storage() != nullptr; });
    say(fmt::format("shared   {} of {} units keep parameters or gradients, {} per rank, in memory shared by a node's ranks",
                    start_plan_.num_sharing_units, num_units, plan::format_bytes(start_plan_.shared_bytes)));
    if (start_plan_.num_sharing_units == 0) {
      logger_.warn(
          "mesh.backend = shared has no effect here: it needs a strategy that shards over two or more ranks, fsdp.sharding=flat, "
          "fsdp.cpu_offload=none or gradients, and with fsdp.param_dtype=fp32 no number for fsdp.reshard_after_forward");
    }
  }
  if (config_.train.drift_interval > 0 && !fsdp::has_replicas(*model_.root)) {
    logger_.warn("train.drift_interval = {} has no effect here: no two ranks hold the same shard, so there is nothing to compare",
                 config_.train.drift_interval);
  }
  if (config_.fsdp.buffer_dtype != "auto" && model_.root->buffers().entries().empty()) {
    logger_.warn("fsdp.buffer_dtype = {} has no effect here: a model of type {} has no buffers", config_.fsdp.buffer_dtype,
                 config_.model.type);
  }
  if (config_.checkpoint.async && !saves_at_intervals(config_)) {
    logger_.warn(
        "checkpoint.async = true has no effect here: checkpoint.interval and checkpoint.interval_minutes are 0, and for its last "
        "checkpoint a run waits");
  }
  if (!datasets_.val && config_.train.eval_interval > 0) {
    logger_.warn("train.eval_interval = {} has no effect here: data.val is empty", config_.train.eval_interval);
  }
  if (config_.train.gradient_sync == "no_sync" && plan_.accumulation > kMostRoundedSums &&
      fsdp_options(config_).reduce_dtype() == DType::bf16) {
    logger_.warn(
        "train.gradient_sync = no_sync adds up the gradients of {} micro-batches in bf16, rounding after each: the later ones may count "
        "too little; set fsdp.reduce_dtype=fp32",
        plan_.accumulation);
  }
  if (config_.train.deterministic && config_.mesh.threads == 0 && device_.num_threads > 1) {
    logger_.warn(
        "train.deterministic = true: the bits depend on the threads of a rank, too, which are {} here and others on another number "
        "of ranks: set mesh.threads",
        device_.num_threads);
  }
  if (!device_.why_not_shared.empty()) say(fmt::format("backend  mpi: {}", device_.why_not_shared));
  say(fmt::format("kernels  {}; {}", device_.kernels->description(), mpi::Session::library_version()));
  const DType param_dtype = fsdp_options(config_).param_dtype();
  if ((param_dtype == DType::bf16 && !device_.kernels->bf16_is_native()) ||
      (param_dtype == DType::f16 && !device_.kernels->f16_is_native())) {
    logger_.warn("no native {} products here; they are computed in fp32 (correct, but slower than fsdp.param_dtype=fp32)",
                 dtype_name(param_dtype));
  }
  say(model_.root->describe());
  say(fmt::format("memory plan, per rank\n{}",
                  plan::format_memory_plan(start_plan_.step_memory, start_plan_.memory.peak, start_plan_.offload_peak)));
  if (device_.mesh->world_size() > 1) say(fmt::format("communication per step and rank\n{}", plan::format_volume(start_plan_.volume)));
}

void Trainer::warn_of_no_checkpoints() const {
  constexpr std::int64_t kStepsToLose = 1000;
  if (saves_at_intervals(config_)) return;
  if (config_.train.steps - start_step() < kStepsToLose) return;
  logger_.warn(
      "checkpoint.interval and checkpoint.interval_minutes are 0: nothing is saved before step {}, unless a signal or a time limit stops "
      "the run, and a kill or a lost node costs all steps from {} on: set one of the two",
      config_.train.steps, start_step() + 1);
}

}  // namespace mica::train
