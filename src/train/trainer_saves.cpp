// SPDX-License-Identifier: Apache-2.0
// How a run's checkpoints are saved, at once or in the background.
#include <utility>

#include "mica/checkpoint/save.hpp"
#include "mica/train/bad_unit.hpp"
#include "mica/train/trainer.hpp"

namespace mica::train {
namespace {

/// How long a save waits before each further attempt: the file system may come back, or somebody may free disk space.
const std::vector<std::chrono::milliseconds> kRetryAfter{std::chrono::seconds(1), std::chrono::seconds(4), std::chrono::seconds(15)};

}  // namespace

void Trainer::prepare_background_saves() {
  if (!saves_in_background(config_)) return;
  app_.comm.agree([&] {
    require<ConfigError>(app_.session.has_thread_multiple(),
                         "checkpoint.async = true communicates from a thread of its own, and this MPI ({}) does not grant "
                         "MPI_THREAD_MULTIPLE: set checkpoint.async = false, or use an MPI that does",
                         mpi::Session::library_version());
  });
  background_world_ = std::make_unique<mpi::Communicator>(app_.world.duplicate());
  background_world_->leave_unrecorded();  // ranks with nothing to write wait there as long as the slowest writer needs, which is no hang
  saver_ = std::make_unique<checkpoint::AsyncSaver>(
      make_mpi_comm(*background_world_), device_.pinned_pool ? *device_.pinned_pool : *device_.pool,
      checkpoint::Retries{.after = kRetryAfter, .are_over = [this] { return is_stopping(); }, .tell = {}});
  app_.comm.agree([&] { saver_->reserve(*model_.root, saved_optimizer(SaveKind::in_background)); });
}

void Trainer::check_owner() const {
  app_.comm.from_first_rank([&] {
    try {
      folder_->check_owner();
    } catch (const IoError& error) {  // the file system may be away for a moment; a save asks again before it publishes a checkpoint
      progress_->warn(error.what());
    }
    return std::string();
  });
}

std::map<std::string, double> Trainer::scalars() const {
  std::map<std::string, double> scalars = judge_.scalars();
  if (model_.scaler) {
    const optim::GradScaler::State state = model_.scaler->state();
    scalars["loss_scale"] = state.scale;
    scalars["loss_scale_growth_tracker"] = static_cast<double>(state.growth_tracker);
  }
  return scalars;
}

checkpoint::SaveState Trainer::save_state(std::int64_t step, SaveKind kind) const {
  return {.root = model_.root,
          .optimizer = saved_optimizer(kind),
          .run_id = run_id_,
          .step = step,
          .parent = parent_,
          .began_from = start_point_.began_from,
          .tokens = tokens_at(step),
          .global_batch = plan_.global_batch(),
          .sequences = plan_.sequences_at(step + 1),
          .data = data_fingerprint_,
          .seed = config_.run.seed,
          .omp_threads = device_.num_threads,
          .val_loss = step == evaluated_step_ ? std::optional(val_loss_) : std::nullopt,
          .val_data = val_data_,
          .diverged = has_diverged_,
          .scalars = scalars(),
          .model = model_description(config_),
          .config = to_ini(config_),
          .tokenizer = tokenizer_};
}

void Trainer::save(std::int64_t step, SaveKind kind) {
  const LostRanks::Pause pause(lost_ranks_.get());
  const Clock::time_point begin = last_save_begin_ = Clock::now();
  is_last_save_ = kind != SaveKind::in_background;
  const Watchdog::Patience patience(app_.watchdog);
  finish_background_save();
  if (step == last_saved_) {
    if (kind != SaveKind::to_resume || last_has_optimizer_) return;
    parent_ = parent_before_;  // the new checkpoint replaces the one of the model only
  }
  check_owner();  // before the others begin to save
  if (model_.scaler) model_.scaler->take_skipped_steps_off(*model_.optimizer);
  has_diverged_ = has_diverged_ || !has_finite_parameters(*model_.root, app_.world);  // the last update is in no loss yet
  app_.comm.agree([&] {
    const checkpoint::SaveState state = save_state(step, kind);
    const checkpoint::SaveOptions options{
        .keep = {static_cast<int>(config_.checkpoint.keep), config_.checkpoint.keep_every, static_cast<int>(config_.checkpoint.keep_best)},
        .at_point = [folder = folder_](std::string_view point) {
          if (point == "before rename") folder->check_owner();
        }};
    if (kind == SaveKind::in_background) {
      saver_->start(config_.run_folder(), state, app_.comm, options);
      background_stall_ms_ = ms_between(begin, Clock::now());
    } else {
      const checkpoint::Retries retries{
          .after = kRetryAfter, .are_over = {}, .tell = [this](const std::string& failure) { progress_->warn(failure); }};
      const checkpoint::SaveReport report = checkpoint::save(config_.run_folder(), state, app_.comm, options, retries);
      tell_saved(report, step, ms_between(begin, Clock::now()));
      note_save(Clock::now() - begin, kind);
    }
  });
  last_saved_ = step;
  last_has_optimizer_ = saved_optimizer(kind) != nullptr;
  parent_before_ = std::exchange(parent_, checkpoint::CheckpointId{run_id_, step});
  begin_interval();
}

void Trainer::tell_saved(const checkpoint::SaveReport& report, std::int64_t step, double stall_ms) {
  metrics_->write_checkpoint(step, report.bytes, stall_ms, report.write_ms);
  for (const std::string& note : report.notes) {
    if (told_notes_.insert(note).second) progress_->say(note);
  }
  progress_->say(fmt::format("saved {} ({} in {:.0f} ms{})", report.path, plan::format_bytes(report.bytes), report.total_ms,
                             saver_ ? fmt::format(", training stalled for {:.0f} ms", stall_ms) : ""));
}

void Trainer::note_save(TimeLimit::Seconds time, SaveKind kind) {
  if (saved_optimizer(kind) != nullptr) time_limit_.note_save(time);
}

void Trainer::look_at_background_save() {
  if (!saver_) return;
  for (const std::string& failure : saver_->take_failed_attempts()) progress_->warn(failure);
  if (const std::optional<checkpoint::SaveReport> report = saver_->take_finished()) {
    tell_saved(*report, last_saved_, background_stall_ms_);
    note_save(std::chrono::duration<double, std::milli>(report->total_ms), SaveKind::in_background);
  }
}

void Trainer::finish_background_save() {
  if (!saver_) return;
  const Watchdog::Patience patience(app_.watchdog);
  constexpr std::chrono::minutes kBetweenWords{1};
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_words = begin + kBetweenWords;
  const auto leave_to_next_save = [&](const Error& error) {  // called in a catch block
    if (!app_.comm.is_shared(error) || app_.world.all_max(is_stopping() ? 1 : 0) == 0) throw;
    progress_->warn(fmt::format("{}; the next save replaces it", error.what()));
    last_saved_ = -1;
    parent_ = parent_before_;
  };
  try {
    app_.comm.agree([&] {
      while (!saver_->wait_for(std::chrono::milliseconds(100))) {
        look_at_background_save();  // reports failed attempts
        if (Clock::now() < next_words) continue;
        next_words += kBetweenWords;
        progress_->warn(
            fmt::format("has waited for {:.0f} s until the background save of step {} is written; the file system may not answer",
                        std::chrono::duration<double>(Clock::now() - begin).count(), last_saved_));
      }
      look_at_background_save();
      saver_->wait();
    });
  } catch (const IoError& error) {
    leave_to_next_save(error);
  } catch (const ConfigError& error) {
    leave_to_next_save(error);
  }
}

}  // namespace mica::train
