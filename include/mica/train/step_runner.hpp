// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/data/dataset.hpp"
#include "mica/device/stopwatch.hpp"
#include "mica/train/batch_loader.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// A step's figures on the device; the host reads them every log_interval steps, or every most_unread_steps().
struct StepFigures {
  Tensor losses;             // [accumulation] f32, of this rank's micro-batches
  Tensor grad_norm;          // [1] f32, of the whole model before clipping, may be NaN; absent with optim.in_backward
  Tensor loss_scale;         // [1] f32, absent without a gradient scaler
  Tensor skipped;            // [1] f32, not 0: gradients overflowed and the step changed nothing; absent without a gradient scaler
  bool is_rejected = false;  ///< by StepHooks::accept: the step changed nothing
};

/// Parts of a step, in order; the first three once for each micro-batch.
enum class StepPhase : std::uint8_t { batch, forward, backward, update };
/// Called at the end of each phase, when its work has been enqueued.
using AfterPhase = std::function<void(StepPhase)>;

/// What a run does within a step; empty functions are not called.
struct StepHooks {
  /// Decides whether the step may change the model, once the gradients and their norm are computed. All ranks must decide alike. It may
  /// call repeat_passes(). Not with a loss scaler or an optimizer in backward.
  std::function<bool(std::int64_t step, const StepFigures& figures)> accept;
  /// Before and after the optimizer's work is enqueued.
  std::function<void()> before_update, after_update;
};

/// The mean loss of each step over all ranks' micro-batches, summed in their order, so that its bits do not depend on the number of ranks.
/// @collective over the mesh, in parts of losses_gathered_at_once(). The host waits.
[[nodiscard]] std::vector<double> mean_losses(ShardedModel& model, const std::vector<const StepFigures*>& steps);

/// How many steps' figures may wait for the host, so that they take some hundred KiB at most whatever log_interval is.
/// @param accumulation  micro-batches per step and rank
[[nodiscard]] std::int64_t most_unread_steps(std::int64_t accumulation);
/// Losses of each rank that mean_losses() has at once on every rank: with all ranks' 256 KiB at most, but on 65,536 ranks or more one each.
/// @param num_losses  of each rank
[[nodiscard]] std::int64_t losses_gathered_at_once(int num_ranks, std::int64_t num_losses);

/// Runs optimizer steps: micro-batches, reduction, clipping, update. It mostly enqueues: run() returns once the device has finished the
/// step before. Meanwhile the next step's micro-batches are read ([Note: batches read ahead]).
class StepRunner {
 public:
  /// All outlive it.
  StepRunner(const Config& config, ShardedModel& model, const data::Dataset& dataset, data::BatchPlan plan, int data_rank);

  /// @param step  counts from 1.
  [[nodiscard]] StepFigures run(std::int64_t step, double lr, const AfterPhase& after = {});
  /// Milliseconds spent in optimizer steps so far; 0 on a GPU and with an optimizer in backward.
  [[nodiscard]] double optimizer_ms() const { return optimizer_time_.ms(); }
  /// BatchLoader::waited_ms().
  [[nodiscard]] double data_ms() const { return batches_.waited_ms(); }
  /// The batches of the next step, which run() reads ahead.
  [[nodiscard]] BatchLoader& batches() { return batches_; }
  void set_hooks(StepHooks hooks) { hooks_ = std::move(hooks); }
  /// Runs the current step's forwards and backwards again, from zeroed gradients, with the same values.
  void repeat_passes(std::int64_t step);

 private:
  /// Forwards and backwards of all micro-batches; gradients are reduced at the end.
  void run_passes(std::int64_t step, const Tensor& dloss, TensorView losses, const AfterPhase& after);
  /// @param dloss  [1] f32, the loss's gradient, with which the backward begins.   @param loss  [1] f32, filled.
  void run_round(nn::Tensors batch, const Tensor& dloss, TensorView loss, const AfterPhase& after);
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

/// Which sequences an evaluation uses. They do not depend on the number of ranks or on train.micro_batch.
struct Evaluation {
  std::int64_t num_sequences = 0;      ///< how many, from the beginning of the dataset; 0: all
  std::int64_t sequences_at_once = 1;  ///< per forward; the result's rounding depends on it
  /// Called on every rank after each round of forwards but the last, with the number of rounds so far; true ends the evaluation. All ranks
  /// must answer alike. Empty: never.
  std::function<bool(std::int64_t round)> is_given_up;
};
/// train.eval_batches counts batches of this many sequences.
inline constexpr std::int64_t kSequencesPerEvalBatch = 16;

/// How many sequences of the dataset it uses.
[[nodiscard]] std::int64_t num_evaluated(const data::Dataset& dataset, const Evaluation& evaluation);

/// The mean loss of the sequences, without gradients or dropout; summed in their order, so that its bits do not depend on the number of
/// ranks; nothing if is_given_up ended it. @collective: every rank gets the same value. The host waits.
/// @throws Error on all ranks (HostComm::is_shared) if one cannot read its sequences; the model can then still be saved.
[[nodiscard]] std::optional<double> evaluate(ShardedModel& model, const data::Dataset& dataset, const Evaluation& evaluation,
                                             const HostComm& comm);

}  // namespace mica::train
