#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mica/train/metrics.hpp"
#include "mica/train/progress.hpp"
#include "mica/train/run_app.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/start_plan.hpp"
#include "mica/train/step_runner.hpp"
#include "mica/train/stop_signal.hpp"

namespace mica::train {

/// One run: set-up, steps, evaluations, checkpoints. [Note: a run]
/// What can be wrong with the user's files and values is found in the constructor, by all ranks together. In a step the
/// host only enqueues; it looks at the figures every log_interval steps, and before evaluations and checkpoints.
class Trainer {
 public:
  /// @collective @throws SharedError for a user's mistake.
  Trainer(App& app, const Config& config, Logger logger);

  /// Prints the resolved config, batch arithmetic, mesh, units and memory plan.
  void print_start() const;
  /// Allocates the model, resumes if asked to, and steps until train.steps, a signal or max_hours.
  ExitCode run();

 private:
  using Clock = std::chrono::steady_clock;
  /// A step whose figures the host has not read yet.
  struct Pending {
    StepFigures figures;
    StepMetrics metrics;
  };

  /// Refuses what the node's memory cannot hold, by the plan, before anything is allocated. @collective
  void check_memory() const;
  void prepare_folder();
  void resume();
  void read_figures(bool show);
  void evaluate_now(std::int64_t step);
  void save(std::int64_t step);
  /// Refuses to go on when replicas differ. @collective
  void check_drift() const;
  /// Whether any rank got a signal, or time is up. @collective
  [[nodiscard]] bool must_stop();
  [[nodiscard]] bool is_main() const { return app_.world.rank() == 0; }

  App& app_;
  Config config_;
  Logger logger_;
  Device device_;
  Datasets datasets_;
  data::BatchPlan plan_;
  ShardedModel model_;
  optim::LrSchedule schedule_;
  StartPlan start_plan_;
  std::string run_id_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<Progress> progress_;

  std::int64_t last_done_ = 0;   ///< steps that this run has behind it
  std::int64_t last_saved_ = -1;
  Clock::time_point start_ = Clock::now();
  std::vector<Pending> pending_;
  Clock::time_point interval_start_;
  double interval_comm_ms_ = 0;
  std::int64_t next_stop_check_ = 1;
  std::int64_t stop_checked_step_ = 0;
  Clock::time_point last_stop_check_ = Clock::now();
};

}  // namespace mica::train
