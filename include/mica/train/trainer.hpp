// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/comm/run_app.hpp"
#include "mica/train/metrics.hpp"
#include "mica/train/progress.hpp"
#include "mica/train/request.hpp"
#include "mica/train/resume_rules.hpp"
#include "mica/train/run_folder.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/slow_path_notices.hpp"
#include "mica/train/start_plan.hpp"
#include "mica/train/step_runner.hpp"
#include "mica/train/step_trace.hpp"
#include "mica/train/stop_signal.hpp"

namespace mica::train {

/// One run: set-up, steps, evaluations, checkpoints. [Note: a run]
/// Mistakes in the user's files and values are found in the constructor, by all ranks together. In a step the host only
/// enqueues; it reads the figures every log_interval steps, and before evaluations and checkpoints.
class Trainer {
 public:
  /// @param start  find_start()  @collective @throws ConfigError, CheckpointError on all ranks for a user's mistake.
  Trainer(App& app, const Config& config, StartPoint start, Logger logger);

  /// Prints these keys of the resolved config, batch sizes, mesh, units and memory plan.
  void print_start(IniKeys keys) const;
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

  /// Loads the checkpoint to resume from. @collective
  void resume();
  /// Starts the files of the run's folder for this launch. @collective
  void begin_files();
  /// Loads the parameters of model.init_from, if set. @collective
  void init_parameters();
  /// The optimizer to save; null: the model only.
  [[nodiscard]] const optim::Optimizer* saved_optimizer() const { return config_.checkpoint.optimizer ? model_.optimizer.get() : nullptr; }
  /// Warns about slow paths of kernels since the last call.
  void tell_slow_paths();
  void read_figures(bool show);
  void evaluate_now(std::int64_t step);
  /// Ends the run if another job has taken over its folder. @collective
  void check_owner() const;
  /// @param in_background  only start it, and report later that it is done.
  void save(std::int64_t step, bool in_background);
  /// Number of tokens that the run has seen after `step`.
  [[nodiscard]] std::int64_t tokens_at(std::int64_t step) const;
  void tell_saved(const checkpoint::SaveReport& report, std::int64_t step, double stall_ms);
  /// Reports a background save that has ended.
  void look_at_background_save();
  /// Waits for a background save. @collective
  void finish_background_save();
  /// Checks that checkpoint.async can work here, and allocates its memory. @collective
  void prepare_background_saves();
  ExitCode train();
  /// Ends the run if replicas differ. @collective
  void check_drift() const;
  /// What all ranks do next: stop, if any of them got a signal or time is up; look, if a background save failed or another job has
  /// taken over the run's folder; save, if checkpoint.interval_minutes are over. @collective
  [[nodiscard]] Request agree_on_request(RequestPace& pace);
  [[nodiscard]] bool is_main() const { return app_.world.rank() == 0; }

  /// Starts the interval of the next figures.
  void begin_interval();

  App& app_;
  StartPoint start_point_;
  Config config_;  ///< with the resolved train.global_batch
  Logger logger_;
  Device device_;
  Datasets datasets_;
  std::string data_fingerprint_;  ///< of data.train; computed once, since it reads tokens
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
  std::int64_t last_done_ = 0;                                ///< steps that this run has done
  std::int64_t last_saved_ = -1;
  Clock::time_point last_save_begin_ = Clock::now();
  std::unique_ptr<mpi::Communicator> background_world_;  ///< of checkpoint.async
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
  double background_stall_ms_ = 0;
  Clock::time_point start_ = Clock::now();
  std::vector<Pending> pending_;
  Clock::time_point interval_start_;
  double interval_comm_ms_ = 0;
};

}  // namespace mica::train
