#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "mica/data/batch.hpp"
#include "mica/train/batch_upload.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// What a step leaves on the device: read by the host at log_interval only.
struct StepFigures {
  Tensor losses;     // [accumulation] f32, of this rank's micro-batches
  Tensor grad_norm;  // [1] f32, of the whole model before clipping; NaN-free or not, as it came; absent with optim.in_backward
  Tensor loss_scale;  // [1] f32, absent without a gradient scaler
  Tensor skipped;     // [1] f32, not 0: gradients overflowed and the step changed nothing; absent likewise
};

/// The mean loss of each step over all ranks' micro-batches, added up in their order, so that its bits do not depend on
/// the ranks. @collective over the mesh. The host waits.
[[nodiscard]] std::vector<double> mean_losses(ShardedModel& model, const std::vector<const StepFigures*>& steps);

/// Runs optimizer steps: micro-batches, reduction, clipping, update. Only enqueues; run() returns when the device has reached
/// at least that step. [Note: batches read ahead] The next step's micro-batches are read right after a step was enqueued, while
/// the device works on it, rather than just before the next one, when the device may be idle. A batch counts as used when its
/// step runs, and an error in it is reported then: reading ahead changes neither the data position nor what is saved.
class StepRunner {
 public:
  /// All outlive it.
  StepRunner(const Config& config, ShardedModel& model, const data::TokenDataset& dataset, data::BatchPlan plan,
             int data_rank);

  /// @param step  counts from 1.
  [[nodiscard]] StepFigures run(std::int64_t step, double lr);

 private:
  /// A micro-batch in the host's memory.
  struct Round {
    data::Batch batch;
    BatchUpload upload;
  };
  /// The micro-batches of one step, in use until the device has passed `done`.
  struct Slot {
    std::int64_t step = 0;  ///< the step they belong to; 0: none
    std::vector<Round> rounds;
    Event done;
  };
  [[nodiscard]] Slot& slot_of(std::int64_t step) { return slots_[static_cast<std::size_t>(step % 2)]; }
  /// Reads a step's micro-batches, unless they have been read. Waits until the step before the last one is over.
  void read(std::int64_t step);
  void read_ahead(std::int64_t step);
  /// @param dloss  [1] f32, what the backward begins with.   @param loss  [1] f32, filled.
  void run_round(const Round& round, const Tensor& dloss, TensorView loss);
  void update(double lr, StepFigures& figures);
  void update_scaled(double lr, StepFigures& figures);

  ShardedModel& model_;
  const data::TokenDataset& dataset_;
  data::BatchPlan plan_;
  int data_rank_;
  data::Sampler sampler_;
  bool no_sync_;
  bool deterministic_;
  double grad_clip_;
  double grad_weight_;  // weight of one micro-batch's gradient at the beginning of its backward
  Tensor dloss_;  // [1] f32: grad_weight_, without a gradient scaler
  std::array<Slot, 2> slots_;
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
[[nodiscard]] double evaluate(ShardedModel& model, const data::TokenDataset& dataset, const Evaluation& evaluation);

}  // namespace mica::train
