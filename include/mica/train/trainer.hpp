// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/comm/run_app.hpp"
#include "mica/train/bad_step.hpp"
#include "mica/train/event_file.hpp"
#include "mica/train/lost_ranks.hpp"
#include "mica/train/metrics.hpp"
#include "mica/train/progress.hpp"
#include "mica/train/request.hpp"
#include "mica/train/resume_rules.hpp"
#include "mica/train/run_folder.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/slow_path_notices.hpp"
#include "mica/train/slow_ranks.hpp"
#include "mica/train/start_plan.hpp"
#include "mica/train/start_times.hpp"
#include "mica/train/step_runner.hpp"
#include "mica/train/step_trace.hpp"
#include "mica/train/stop_signal.hpp"
#include "mica/train/time_limit.hpp"

namespace mica::train {

/// One run: set-up, steps, evaluations, checkpoints. [Note: a run]
/// Mistakes in the user's files and values are found in the constructor, by all ranks together. In a step the host only
/// enqueues; it reads the figures every log_interval steps, and before evaluations and checkpoints.
class Trainer {
 public:
  /// @param start  find_start()  @param times  outlives it  @collective @throws ConfigError, CheckpointError on all ranks for a user's
  /// mistake.
  Trainer(App& app, const Config& config, StartPoint start, Logger logger, StartTimes& times);
  /// Waits for a step that an error has left running: its tasks read the batches and call the emergency saver.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// On rank 0 calls `say` with these keys of the resolved config, batch sizes, mesh, units and memory plan. Warnings go to the log.
  void print_start(IniKeys keys, const std::function<void(const std::string&)>& say) const;
  /// Warns if a run would be refused here for lack of memory or disk space, or for its folder: --check may run on another machine than
  /// the training. @collective
  void warn_of_refusals() const;
  /// Allocates the model, resumes if there is a checkpoint, and steps until train.steps, a signal or max_hours.
  ExitCode run(const RunFolder& folder);

 private:
  using Clock = std::chrono::steady_clock;
  static double ms_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double, std::milli>(b - a).count(); }
  /// A step whose figures the host has not read yet.
  struct Pending {
    StepFigures figures;
    StepMetrics metrics;
  };

  /// Warns if a long launch has no checkpoint before its last step.
  void warn_of_no_checkpoints() const;
  /// Ends the run if token files differ between ranks. @collective
  void check_same_data() const;
  /// Ends the run if the disk of its folder has no room for one checkpoint. @collective
  void check_disk() const;
  /// Everything before the first step. @collective
  void prepare();
  /// The last step done before this launch.
  [[nodiscard]] std::int64_t start_step() const { return start_point_.manifest ? start_point_.manifest->step : 0; }
  /// Records this start in the run's folder. @throws Error on all ranks at the third start in a row without progress. @collective
  void note_start();
  /// A launch that a user's mistake ended does not count as a start: the next launch must report the mistake again.
  void withdraw_start_if_refused(const std::exception& error) const;
  /// Loads the checkpoint to resume from. @collective
  void resume();
  /// Starts the files of the run's folder for this launch. @collective
  void begin_files();
  /// Rank 0: the row that describes this launch.
  void write_started();
  /// Loads the parameters of model.init_from, if set. @collective
  void init_parameters();
  /// How a checkpoint is saved. in_background: the save is only started, and reported later. to_resume: at once, and with the optimizer
  /// state whatever checkpoint.optimizer says.
  enum class SaveKind : std::uint8_t { at_once, in_background, to_resume };
  /// The optimizer to save; null: the model only.
  [[nodiscard]] const optim::Optimizer* saved_optimizer(SaveKind kind) const {
    return config_.checkpoint.optimizer || kind == SaveKind::to_resume ? model_.optimizer.get() : nullptr;
  }
  /// With log.level=debug rank 0 waits for each phase of this launch's first step, and prints where the time up to its end went.
  [[nodiscard]] StepFigures run_step(std::int64_t step, double lr);
  /// Warns about slow kernel paths taken since the last call.
  void tell_slow_paths();
  void read_figures(bool show);
  /// Whether a step has a progress line.
  [[nodiscard]] bool is_logged(std::int64_t step) const;
  /// Gathers all ranks' figures of the steps since begin_interval(). @collective
  [[nodiscard]] std::vector<RankFigures> exchange_figures(double step_ms, double wait_ms) const;
  /// Warns about ranks that hold up the others.
  void name_slow_ranks(const std::vector<RankFigures>& ranks);
  /// How a step's time was spent, averaged since begin_interval(). Nothing on a GPU.
  [[nodiscard]] std::optional<StepSplit> split_of_step(double step_ms, double num_steps) const;
  /// Writes the metrics rows about ranks and memory. @param ranks  by rank
  void write_ranks_and_memory(std::int64_t step, const std::vector<RankFigures>& ranks);
  /// Opens metrics.jsonl, and the event file for TensorBoard, from the step after last_done_ on. Rank 0 only.
  void open_metrics();
  enum class GivesUp : std::uint8_t { never, on_a_stop };
  /// @returns Request::stop if the evaluation was given up, else none. @collective
  Request evaluate_now(std::int64_t step, GivesUp gives_up);
  /// evaluate_now() of a step that is not saved yet. If no rank can go on since one cannot read data.val, the step is saved before the
  /// error is thrown. @collective
  Request evaluate_or_save(std::int64_t step);
  /// Ends the run if another job has taken over its folder. If that cannot be found out, it only warns. @collective
  void check_owner() const;
  void save(std::int64_t step, SaveKind kind);
  /// Number of tokens that the run has seen up to and including `step`.
  [[nodiscard]] std::int64_t tokens_at(std::int64_t step) const;
  void tell_saved(const checkpoint::SaveReport& report, std::int64_t step, double stall_ms);
  /// For the reserve of time_limit_. A save of the model alone does not show how long a save with the optimizer state takes.
  void note_save(TimeLimit::Seconds time, SaveKind kind);
  /// Reports a background save that has ended.
  void look_at_background_save();
  /// Waits for a background save. If it failed and the run is about to stop, its error is only a warning: the final save replaces it.
  /// @collective
  void finish_background_save();
  /// Whether this rank is about to stop. Any thread.
  [[nodiscard]] bool is_stopping() const { return is_last_save_ || StopSignal::received() != 0; }
  /// Checks that checkpoint.async can work here, and allocates its memory. @collective
  void prepare_background_saves();
  ExitCode train();
  /// Reads a checkpoint into the model, the optimizer and the loss scaler. @collective
  checkpoint::LoadReport load(const std::string& folder, const checkpoint::Manifest& manifest);
  /// Named values of the run that a checkpoint keeps. Waits for the compute stream where there is a loss scaler.
  [[nodiscard]] std::map<std::string, double> scalars() const;
  /// Makes the runner for steps from plan_.first_step on.
  void make_runner();

  /// Prepares to save when ranks are lost, if this run can ([Note: lost ranks]). @collective
  void prepare_emergency_saves();
  void watch_for_lost_ranks();
  void forget_lost_ranks();
  /// What an emergency checkpoint records, once the optimizer's work on this step is enqueued.
  [[nodiscard]] checkpoint::StepsDone steps_done(std::int64_t step) const;
  [[nodiscard]] checkpoint::SaveState save_state(std::int64_t step, SaveKind kind) const;

  /// Whether the step may change the model; notes what is wrong with it. @collective
  bool accept(std::int64_t step, const StepFigures& figures);
  /// Applies train.on_bad_step to a step that was not accepted. @returns whether the run was rolled back. @collective @throws Error on all
  /// ranks if the run stops.
  bool handle_bad_step(std::int64_t step);
  /// Writes a trace and says so; where there is no room for it, warns.
  void tell_trace(const std::function<std::optional<std::string>()>& write);
  /// Goes back to the newest checkpoint. The data up to `bad_step` is not read again. @collective
  void roll_back(std::int64_t bad_step);
  /// Saves the last good step and ends the run. @collective @throws Error on all ranks.
  [[noreturn]] void stop_at_bad_step(const std::string& why);
  /// Saves and ends an fp16 run whose steps the loss scaler would skip for ever. @collective @throws Error on all ranks.
  void stop_at_overflows(std::int64_t step);
  /// Warns once; with train.on_bad_step = none only.
  void warn_of_bad_loss(const StepMetrics& metrics);
  /// Ends the run if replicas differ. @collective
  void check_drift() const;
  /// What all ranks do next. stop: one of them got a signal or cannot read its next batch, or the time limit is near. look: a background
  /// save failed, or another job has taken over the run's folder. save: checkpoint.interval_minutes have passed. @param at  step, or round
  /// of an evaluation
  /// @collective
  [[nodiscard]] Request agree_on_request(RequestPace& pace, std::int64_t at);
  /// Whether the batches of the step after last_done_ could not be read ahead on this rank.
  [[nodiscard]] bool lacks_next_batch() const;
  /// Whether any rank was told to stop while the run starts. Such a run ends before its first step. @collective
  [[nodiscard]] bool stops_while_starting() const;
  /// "SIGTERM on rank 2", "8 s left before the limit (train.max_hours), ...". @collective
  [[nodiscard]] std::string reason_to_stop() const;
  /// Estimates for TimeLimit how long a save takes before one was measured. @collective
  void estimate_save();
  [[nodiscard]] bool is_main() const { return app_.world.rank() == 0; }

  /// Starts the interval over which the next figures are averaged.
  void begin_interval();

  App& app_;
  StartTimes& times_;
  StartPoint start_point_;
  Config config_;  ///< with the resolved train.global_batch
  Logger logger_;
  Device device_;
  Datasets datasets_;
  std::string data_fingerprint_;  ///< of data.train; computed once, since it reads tokens
  std::string val_fingerprint_;   ///< the same of data.val; empty without it
  Continuation continuation_;     ///< empty without a checkpoint to resume from
  data::BatchPlan plan_;
  ShardedModel model_;
  optim::LrSchedule schedule_;
  StartPlan start_plan_;
  std::string run_id_;
  const RunFolder* folder_ = nullptr;  ///< run()'s
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<Progress> progress_;
  SlowPathNotices slow_paths_;  ///< rank 0's

  std::optional<checkpoint::CheckpointId> parent_;            ///< of the next checkpoint
  std::shared_ptr<const checkpoint::HfTokenizer> tokenizer_;  ///< rank 0's: checkpoints keep what the model came with
  std::int64_t last_done_ = 0;                                ///< last step done
  std::int64_t last_saved_ = -1;
  std::set<std::string> told_notes_;  ///< that were logged: each save notes what it cannot delete, and the log has it once
  bool last_has_optimizer_ = true;    ///< the checkpoint of last_saved_
  Clock::time_point last_save_begin_ = Clock::now();
  std::unique_ptr<mpi::Communicator> background_world_;  ///< of checkpoint.async
  std::atomic<bool> is_last_save_ = false;               ///< the save in progress is the last one; read by saver_'s thread
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
  double background_stall_ms_ = 0;
  BadStepJudge judge_;
  std::string bad_step_;             ///< what was wrong with the last bad step, and in which unit
  std::int64_t last_bad_step_ = -1;  ///< the last of num_bad_in_a_row_ steps
  static constexpr int kMostBadInARow = 10;
  int num_bad_in_a_row_ = 0;
  int num_hopeless_ = 0;              ///< steps in a row that the loss scaler has skipped with its least scale
  std::int64_t rolled_back_to_ = -1;  ///< step
  int num_rollbacks_ = 0;             ///< to that step
  bool has_warned_of_bad_loss_ = false;
  std::int64_t tokens_before_ = 0;                         ///< seen before plan_.first_step
  std::optional<checkpoint::CheckpointId> parent_before_;  ///< parent_, if the background save fails
  Clock::time_point start_ = times_.mpi_init_at();
  TimeLimit time_limit_;                 ///< rank 0's
  Clock::time_point asked_at_ = start_;  ///< when the ranks last agreed on a request
  int num_saves_to_do_ = 1;              ///< until a stop, when the ranks last agreed: 2 with a background save under way
  std::int64_t evaluated_step_ = -1;     ///< the one of val_loss_; -1: none
  double val_loss_ = 0;
  std::string val_data_;               ///< Manifest::val_data, of val_loss_
  bool has_diverged_ = false;          ///< the loss or gradient norm of the last step is NaN or infinite, or a parameter when it was saved
  std::unique_ptr<EventFile> events_;  ///< null without log.tensorboard
  std::vector<Pending> pending_;
  Clock::time_point interval_start_;
  /// This rank's totals so far.
  struct Clocks {
    double comm_ms = 0, exposed_ms = 0, optimizer_ms = 0, data_ms = 0;
  };
  [[nodiscard]] Clocks clocks() const;
  Clocks interval_clocks_;
  std::int64_t num_saving_steps_ = 0;  ///< steps of the interval with a background save under way
  std::optional<SlowRanks> slow_ranks_;
  std::vector<ProductShape> products_;                           ///< rank 0's, of this launch's first step
  std::int64_t told_start_ = 0;                                  ///< the step of this launch's row `started`
  std::int64_t told_peak_bytes_ = 0;                             ///< of the last row about memory
  std::unique_ptr<checkpoint::EmergencySaver> emergency_saver_;  ///< null: not possible or turned off
  std::unique_ptr<LostRanks> lost_ranks_;                        ///< only while steps run; it uses emergency_saver_
};

}  // namespace mica::train
