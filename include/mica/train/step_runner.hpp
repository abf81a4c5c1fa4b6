// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/data/dataset.hpp"
#include "mica/train/batch_loader.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// What a step leaves on the device: read by the host at log_interval only.
struct StepFigures {
  Tensor losses;      // [accumulation] f32, of this rank's micro-batches
  Tensor grad_norm;   // [1] f32, of the whole model before clipping; NaN-free or not, as it came; absent with optim.in_backward
  Tensor loss_scale;  // [1] f32, absent without a gradient scaler
  Tensor skipped;     // [1] f32, not 0: gradients overflowed and the step changed nothing; absent likewise
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

  /// @param step  counts from 1.
  [[nodiscard]] StepFigures run(std::int64_t step, double lr);

 private:
  /// @param dloss  [1] f32, what the backward begins with.   @param loss  [1] f32, filled.
  void run_round(nn::Tensors batch, const Tensor& dloss, TensorView loss);
  void update(double lr, StepFigures& figures);
  void update_scaled(double lr, StepFigures& figures);

  ShardedModel& model_;
  data::BatchPlan plan_;
  BatchLoader batches_;
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
};
/// train.eval_batches counts batches of this many sequences.
inline constexpr std::int64_t kSequencesPerEvalBatch = 16;

/// The mean loss of the sequences, without gradients or dropout; added up in their order, so that its bits do not depend on
/// the number of ranks. @collective: every rank gets the same value. The host waits.
[[nodiscard]] double evaluate(ShardedModel& model, const data::Dataset& dataset, const Evaluation& evaluation);

}  // namespace mica::train
