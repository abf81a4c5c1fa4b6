// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "mica/data/dataset.hpp"
#include "mica/device/stopwatch.hpp"
#include "mica/train/batch_loader.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/start_times.hpp"

namespace mica::train {

/// What a step leaves on the device: read by the host at log_interval only.
struct StepFigures {
  Tensor losses;             // [accumulation] f32, of this rank's micro-batches
  Tensor grad_norm;          // [1] f32, of the whole model before clipping; NaN-free or not, as it came; absent with optim.in_backward
  Tensor loss_scale;         // [1] f32, absent without a gradient scaler
  Tensor skipped;            // [1] f32, not 0: gradients overflowed and the step changed nothing; absent likewise
  bool is_rejected = false;  ///< by StepHooks::accept: the step changed nothing
};

/// What a run does within a step; absent ones do nothing.
struct StepHooks {
  /// Decides, once the gradients and their norm are there, whether the step may change the model; the same on all ranks. It may
  /// repeat_passes(). Not with a loss scaler or an optimizer in backward.
  std::function<bool(std::int64_t step, const StepFigures& figures)> accept;
  /// Before and after the optimizer's work is enqueued.
  std::function<void()> before_update, after_update;
};

/// The mean loss of each step over all ranks' micro-batches, added up in their order, so that its bits do not depend on
/// the ranks. @collective over the mesh. The host waits.
[[nodiscard]] std::vector<double> mean_losses(ShardedModel& model, const std::vector<const StepFigures*>& steps);

/// Runs optimizer steps: micro-batches, reduction, clipping, update. Enqueues only; run() returns when the device has
/// come to that step at least. The next step's micro-batches are read meanwhile ([Note: batches read ahead]).
class StepRunner {
 public:
  /// All outlive it.
  StepRunner(const Config& config, ShardedModel& model, const data::Dataset& dataset, data::BatchPlan plan, int data_rank);

  /// @param step   counts from 1.
  /// @param times  takes the times of the step's phases; the host then waits for the device after each.
  [[nodiscard]] StepFigures run(std::int64_t step, double lr, StartTimes* times = nullptr);
  /// Milliseconds that the optimizer's steps have taken so far; 0 on a GPU, and where it steps in backward.
  [[nodiscard]] double optimizer_ms() const { return optimizer_time_.ms(); }
  /// As BatchLoader::waited_ms().
  [[nodiscard]] double data_ms() const { return batches_.waited_ms(); }
  void set_hooks(StepHooks hooks) { hooks_ = std::move(hooks); }
  /// Runs the forwards and backwards of the step under way again, to gradients that are zero: the same values.
  void repeat_passes(std::int64_t step);

 private:
  /// Forwards and backwards of all micro-batches; gradients are reduced at the end.
  void run_passes(std::int64_t step, const Tensor& dloss, TensorView losses, StartTimes* times);
  /// @param dloss  [1] f32, what the backward begins with.   @param loss  [1] f32, filled.
  void run_round(nn::Tensors batch, const Tensor& dloss, TensorView loss, StartTimes* times);
  void end_phase(const char* phase, StartTimes* times) const;
  void update(std::int64_t step, double lr, StepFigures& figures);
  void step_optimizer(const optim::StepArgs& args);
  void update_scaled(double lr, StepFigures& figures);

  ShardedModel& model_;
  data::BatchPlan plan_;
  BatchLoader batches_;
  StepHooks hooks_;
  Stopwatch optimizer_time_;
  bool no_sync_;
  bool deterministic_;
  double grad_clip_;
  double grad_weight_;  // weight of one micro-batch's gradient at the beginning of its backward
  Tensor dloss_;        // [1] f32: grad_weight_, without a gradient scaler
};

/// The sequences of an evaluation, so that its result depends on the model and the data only, not on the ranks and
/// train.micro_batch.
struct Evaluation {
  std::int64_t num_sequences = 0;      ///< from the first on, at most all; 0: all
  std::int64_t sequences_at_once = 1;  ///< per forward; the result's rounding depends on it
  /// Asked on every rank after each round of forwards but the last, with their number so far; all ranks answer alike. Empty: never.
  std::function<bool(std::int64_t round)> is_given_up;
};
/// train.eval_batches counts batches of this many sequences.
inline constexpr std::int64_t kSequencesPerEvalBatch = 16;

/// The mean loss of the sequences, without gradients or dropout; added up in their order, so that its bits do not depend on
/// the number of ranks; nothing if it was given up. @collective: every rank gets the same value. The host waits.
[[nodiscard]] std::optional<double> evaluate(ShardedModel& model, const data::Dataset& dataset, const Evaluation& evaluation);

}  // namespace mica::train
