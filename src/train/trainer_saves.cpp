// SPDX-License-Identifier: Apache-2.0
// How a run's checkpoints are saved, at once or in the background.
#include "mica/checkpoint/save.hpp"
#include "mica/train/trainer.hpp"

namespace mica::train {

void Trainer::prepare_background_saves() {
  if (!config_.checkpoint.async) return;
  app_.comm.agree([&] {
    require<ConfigError>(app_.session.has_thread_multiple(),
                         "checkpoint.async = true communicates from a thread of its own, and this MPI ({}) does not grant "
                         "MPI_THREAD_MULTIPLE: set checkpoint.async = false, or use an MPI that does",
                         mpi::Session::library_version());
  });
  background_world_ = std::make_unique<mpi::Communicator>(app_.world.duplicate());
  saver_ = std::make_unique<checkpoint::AsyncSaver>(make_mpi_comm(*background_world_),
                                                    device_.pinned_pool ? *device_.pinned_pool : *device_.pool);
  app_.comm.agree([&] { saver_->reserve(*model_.root, saved_optimizer()); });
}

void Trainer::check_owner() const {
  app_.comm.from_first_rank([&] {
    folder_->check_owner();
    return std::string();
  });
}

void Trainer::save(std::int64_t step, bool in_background) {
  if (step == last_saved_) return;
  const Clock::time_point begin = last_save_begin_ = Clock::now();
  finish_background_save();
  check_owner();  // before the others begin to save
  std::map<std::string, double> scalars;
  if (model_.scaler) {
    model_.scaler->take_skipped_steps_off(*model_.optimizer);
    const optim::GradScaler::State state = model_.scaler->state();
    scalars = {{"loss_scale", state.scale}, {"loss_scale_growth_tracker", static_cast<double>(state.growth_tracker)}};
  }
  app_.comm.agree([&] {
    const checkpoint::SaveState state{.root = model_.root,
                                      .optimizer = saved_optimizer(),
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
                                      .scalars = scalars,
                                      .model = model_description(config_),
                                      .config = to_ini(config_),
                                      .tokenizer = tokenizer_};
    const checkpoint::SaveOptions options{.keep = static_cast<int>(config_.checkpoint.keep),
                                          .at_point = [folder = folder_](std::string_view point) {
                                            if (point == "before rename") folder->check_owner();
                                          }};
    if (in_background) {
      saver_->start(config_.run_folder(), state, app_.comm, options);
      background_stall_ms_ = ms_between(begin, Clock::now());
    } else {
      const checkpoint::SaveReport report = checkpoint::save(config_.run_folder(), state, app_.comm, options);
      tell_saved(report, step, ms_between(begin, Clock::now()));
    }
  });
  last_saved_ = step;
  parent_ = {run_id_, step};
  begin_interval();
}

void Trainer::tell_saved(const checkpoint::SaveReport& report, std::int64_t step, double stall_ms) {
  metrics_->write_checkpoint(step, report.bytes, stall_ms, report.write_ms);
  for (const std::string& note : report.notes) progress_->say(note);
  progress_->say(fmt::format("saved {} ({} in {:.0f} ms{})", report.path, plan::format_bytes(report.bytes), report.total_ms,
                             config_.checkpoint.async ? fmt::format(", training stalled for {:.0f} ms", stall_ms) : ""));
}

void Trainer::look_at_background_save() {
  if (!saver_) return;
  if (const std::optional<checkpoint::SaveReport> report = saver_->take_finished()) {
    tell_saved(*report, last_saved_, background_stall_ms_);
  }
}

void Trainer::finish_background_save() {
  if (!saver_) return;
  app_.comm.agree([&] {
    saver_->wait();
    look_at_background_save();
  });
}

}  // namespace mica::train
