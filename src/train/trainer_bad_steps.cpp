// SPDX-License-Identifier: Apache-2.0
// What a run does with steps whose loss or gradients are bad. [Note: bad steps] A step is judged after its last reduction and before the
// optimizer: the host waits for its losses and its gradient norm, and the worst rank decides for all. A bad step has changed nothing yet,
// so its forwards and backwards can be repeated with the same values to find the unit.
// Skipped: the step counts and its data is used up, but the optimizer makes no step. A resume that meets the step again skips it again.
// Rolled back: the model is the newest checkpoint's, and its next step begins after the data of the bad step. If that was in vain and the
// checkpoint is marked as diverged, it is the newest sound one's. A new checkpoint of the same step replaces it at once and records that
// (Manifest::sequences), so that a resume skips the data too.
#include <algorithm>
#include <cmath>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/retention.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/tensor/fetch.hpp"
#include "mica/tensor/loss_scale.hpp"
#include "mica/train/bad_unit.hpp"
#include "mica/train/trainer.hpp"

namespace mica::train {
namespace {

/// To the same checkpoint.
constexpr int kMostRollbacks = 3;

}  // namespace

bool Trainer::accept(std::int64_t step, const StepFigures& figures) {
  const nn::Context& context = model_.context;
  const std::vector<float> losses = fetch<float>(context.kernels, context.compute, figures.losses);
  const double grad_norm = fetch_scalar(context.kernels, context.compute, figures.grad_norm);
  const auto worst = static_cast<BadStep>(app_.world.all_max(static_cast<std::int64_t>(judge_.judge(losses, grad_norm))));
  if (worst == BadStep::none) {
    judge_.count_good(grad_norm);
    return true;
  }
  device_.kernels->record_products(nullptr);  // a first step counts without the passes that name the unit
  const std::string unit = worst == BadStep::grad_norm_spike ? unit_of_largest_gradient(model_, app_.world)
                                                             : first_bad_unit(model_, app_.world, [&] { runner_->repeat_passes(step); });
  bad_step_ = judge_.describe(worst, grad_norm) + "; " + unit;
  return false;
}

bool Trainer::handle_bad_step(std::int64_t step) {
  const std::string& action = config_.train.on_bad_step;
  num_bad_in_a_row_ = step == last_bad_step_ + 1 ? num_bad_in_a_row_ + 1 : 1;
  last_bad_step_ = step;
  const std::string told = fmt::format("step {} is bad: {}", step, bad_step_);
  read_figures(is_logged(step) && action == "skip");
  metrics_->write_bad_step(step, bad_step_, action);
  if (action == "stop") stop_at_bad_step(told);
  if (action == "rollback") {
    progress_->warn(told);
    roll_back(step);
    return true;
  }
  if (num_bad_in_a_row_ >= kMostBadInARow) stop_at_bad_step(fmt::format("{}; {} steps in a row were", told, num_bad_in_a_row_));
  progress_->warn(told + "; it is skipped");
  if (emergency_saver_) {
    emergency_saver_->before_update();
    emergency_saver_->after_update(steps_done(step));
  }
  return false;
}

void Trainer::roll_back(std::int64_t bad_step) {
  const Watchdog::Patience patience(app_.watchdog);
  finish_background_save();
  check_owner();
  const std::string checkpoints = checkpoint::checkpoints_folder(config_.run_folder());
  const std::string folder = app_.comm.from_first_rank([&] {
    std::vector<checkpoint::Keepable> all = checkpoint::list_keepable(checkpoints, last_done_, true);
    for (const checkpoint::Keepable& each : all) {
      require<IoError>(!each.is_unread, "{}: cannot be read now, and may be the checkpoint to roll back to", each.path);
    }
    std::erase_if(all, [](const checkpoint::Keepable& each) { return !each.can_be_resumed; });
    if (all.empty()) return start_point_.checkpoint;
    if (!all.back().diverged || all.back().step != rolled_back_to_) return all.back().path;
    // In vain: its model is spoilt, and not the data that is skipped.
    const auto sound = std::find_if(all.rbegin(), all.rend(), [](const checkpoint::Keepable& each) { return !each.diverged; });
    return sound == all.rend() ? all.back().path : sound->path;
  });
  if (folder.empty()) stop_at_bad_step(fmt::format("step {} is bad: {}; there is no checkpoint to roll back to", bad_step, bad_step_));
  const checkpoint::Manifest manifest = checkpoint::open_checkpoint(folder, app_.comm);
  num_rollbacks_ = manifest.step == rolled_back_to_ ? num_rollbacks_ + 1 : 1;
  rolled_back_to_ = manifest.step;
  if (num_rollbacks_ > kMostRollbacks) {
    stop_at_bad_step(
        fmt::format("step {} is bad: {}; the run was rolled back to step {} {} times", bad_step, bad_step_, manifest.step, kMostRollbacks));
  }

  model_.root->reshard();
  if (emergency_saver_) emergency_saver_->before_update();
  app_.comm.agree([&] { load(folder, manifest); });
  tokens_before_ = manifest.tokens;
  plan_.sequences_before = plan_.sequences_at(bad_step + 1);
  plan_.first_step = manifest.step + 1;
  const bool is_of_run = io::parent_directory(folder) == checkpoints;
  parent_ = is_of_run ? manifest.parent : manifest.id();
  run_id_ = app_.world.broadcast_string(checkpoint::make_run_id(), 0);
  last_done_ = manifest.step;
  last_saved_ = -1;
  evaluated_step_ = manifest.val_loss ? manifest.step : -1;
  val_loss_ = manifest.val_loss.value_or(0);
  val_data_ = manifest.val_data;
  has_diverged_ = manifest.diverged;
  if (emergency_saver_) emergency_saver_->after_update(steps_done(last_done_));
  make_runner();

  app_.comm.agree([&] {
    if (!is_main()) return;
    const std::string set_aside = folder_->set_aside_after(last_done_);
    if (!set_aside.empty()) progress_->say(fmt::format("later checkpoints, whose training had diverged, are now in {}", set_aside));
    open_metrics();
    metrics_->write_rolled_back(last_done_, bad_step, bad_step_);
    if (told_start_ > last_done_) write_started();  // the row went with the later ones
    told_peak_bytes_ = 0;                           // so may have this one
  });
  progress_->warn(
      fmt::format("rolled back to {}, step {}; the data of steps {} to {} is skipped", folder, last_done_, last_done_ + 1, bad_step));
  save(last_done_, SaveKind::to_resume);
}

void Trainer::stop_at_bad_step(const std::string& why) {
  std::string saved;
  if (last_done_ > 0) {
    save(last_done_, SaveKind::to_resume);
    saved = fmt::format(", and step {} is saved", last_done_);
  }
  app_.comm.agree([&] {
    throw Error(
        fmt::format("{}; the step changed nothing{}: lower optim.lr, look at the data of that step, or choose another "
                    "train.on_bad_step",
                    why, saved));
  });
  std::terminate();  // agree() has thrown
}

void Trainer::stop_at_overflows(std::int64_t step) {
  if (last_done_ > 0) save(last_done_, SaveKind::to_resume);
  app_.comm.agree([&] {
    throw Error(
        fmt::format("step {} overflows fp16 with the least loss scale, {:g}, and so did the {} before it, which changed nothing: its "
                    "activations do not fit fp16, or its parameters are NaN. Use fsdp.param_dtype=bf16, a lower optim.lr, or an "
                    "earlier checkpoint (--checkpoint.resume=FOLDER)",
                    step, kLeastLossScale, num_hopeless_ - 1));
  });
}

void Trainer::warn_of_bad_loss(const StepMetrics& m) {
  if (config_.train.on_bad_step != "none" || has_warned_of_bad_loss_ || std::isfinite(m.loss)) return;
  has_warned_of_bad_loss_ = true;
  progress_->warn(fmt::format("the loss of step {} is NaN or infinite: {}", m.step,
                              model_.scaler ? "its activations do not fit fp16, or its parameters are NaN"
                                            : "train.on_bad_step = stop, skip or rollback protects the model from such steps"));
}

}  // namespace mica::train
