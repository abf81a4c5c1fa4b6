// SPDX-License-Identifier: Apache-2.0
// What a run prepares for the loss of ranks.
#include <fstream>

#include "mica/train/trainer.hpp"

namespace mica::train {
namespace {

/// Why the ranks that are left could not save; empty if they could.
std::string why_no_emergency_saves(const Config& config, const Device& device, const ShardedModel& model) {
  if (!checkpoint::EmergencySaver::can_save(*model.root))
    return "there is only one copy of each shard (fsdp.strategy = hybrid_shard has "
           "more)";
  if (!config.checkpoint.emergency) return "checkpoint.emergency = false";
  if (!config.checkpoint.optimizer) return "checkpoint.optimizer = false";
  if (device.gpu) return "ranks are on GPUs";
  if (model.in_backward) return "optim.in_backward = true updates units one by one";
  if (model.scaler) return "fp16's loss scale is not tracked step by step";
  return "";
}

}  // namespace

void Trainer::prepare_emergency_saves() {
  if (app_.world.num_ranks() == 1) return;
  const std::string why_not = why_no_emergency_saves(config_, device_, model_);
  if (!why_not.empty()) {
    logger_.info("a lost rank costs the steps since the last checkpoint: {}", why_not);
    return;
  }
  tokenizer_ = checkpoint::copy_from_first_rank(tokenizer_, app_.comm);
  app_.comm.agree([&] {
    model_.optimizer->allocate_state();
    model_.context.compute.synchronize();
    emergency_saver_ = std::make_unique<checkpoint::EmergencySaver>(
        config_.run_folder(), save_state(last_done_, SaveKind::to_resume), [folder = config_.run_folder(), owner = folder_->owner()] {
          const std::string now = RunLock::owner_in(folder);
          require(now == owner, "the run folder {} now belongs to {}", folder, now.empty() ? "nobody" : "another job, " + now);
        });
  });
  logger_.info("a lost rank costs no step as long as the others hold all shards: they save and end with status 75");
}

void Trainer::watch_for_lost_ranks() {
  if (!emergency_saver_) return;
  lost_ranks_ = std::make_unique<LostRanks>(
      *emergency_saver_,
      LostRanks::Hooks{.waits = [this] { return app_.watchdog.waits(); },
                       .tell_saved =
                           [this](const checkpoint::SaveReport& report) {
                             // Not through metrics_: rank 0 may be lost.
                             const std::string path = config_.log.metrics ? config_.run_folder() + "/metrics.jsonl" : "";
                             MetricsFile(path, [](const std::string&) {}).write_checkpoint(report.step, report.bytes, 0, report.write_ms);
                           },
                       .warn =
                           [this](const std::string& text) {
                             logger_.warn("{}", text);
                             // A launcher that ends the job may not forward output any more. Rank 0's own line is already in log.txt.
                             if (!is_main()) std::ofstream(app_.log_file, std::ios::app) << "warning: " << text << '\n';
                           },
                       .exits = [this] { app_.watchdog.note_end(); },
                       .how_to_go_on = how_to_go_on(config_)});
  app_.watchdog.set_save([this](const std::string& why, std::chrono::duration<double> linger) { lost_ranks_->save_and_exit(why, linger); });
}

void Trainer::forget_lost_ranks() {
  app_.watchdog.set_save({});  // waits for a save under way
  lost_ranks_.reset();
}

checkpoint::StepsDone Trainer::steps_done(std::int64_t step) const {
  return {.run_id = run_id_,
          .step = step,
          .tokens = tokens_at(step),
          .sequences = plan_.sequences_at(step + 1),
          .parent = parent_,
          .optimizer_steps = model_.optimizer->num_steps(),
          .parameter_steps = model_.optimizer->parameter_steps(),
          .scalars = scalars(),
          .diverged = has_diverged_};
}

}  // namespace mica::train
