// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "mica/data/batch.hpp"
#include "mica/data/batch_plan.hpp"
#include "mica/data/sampler.hpp"
#include "mica/train/batch_upload.hpp"

namespace mica::train {

/// Gives a rank its micro-batches, where its model reads them. [Note: batches read ahead] It holds the batches of two steps. So the next
/// step's batches are read right after a step is enqueued, while the device still has work. A batch counts as used only when its step runs,
/// and an error in it is thrown only then: reading ahead changes neither the data position nor what is saved.
/// @code
///   train::BatchLoader batches(context, device_mesh, dataset, sampler, plan, mesh.rank());
///   for (std::int64_t step = plan.first_step; step <= last; ++step) {
///     for (std::int64_t round = 0; round < plan.accumulation; ++round) {
///       const nn::Tensors inputs_and_targets = batches.load(step, round);
/// @endcode
class BatchLoader {
 public:
  /// @param context, device_mesh, dataset  outlive it.
  /// @param data_rank  in [0, plan.num_ranks): in training mesh.rank(). The launcher may number ranks in another order than the mesh;
  ///                   with its numbers deterministic results would not be those of one rank.
  BatchLoader(nn::Context& context, const fsdp::DeviceMesh& device_mesh, const data::Dataset& dataset, data::Sampler sampler,
              data::BatchPlan plan, int data_rank);

  /// The dataset's tensors, [B, ...] each, of this rank's micro-batch in `round` of `step`; context.sequences is set to it. Work that uses
  /// them must be enqueued on the compute stream before the tensors of another step are loaded. The host waits until the device has
  /// finished the step before the last one. @throws what Dataset::read() throws.
  [[nodiscard]] nn::Tensors load(std::int64_t step, std::int64_t round);
  /// Reads a step's micro-batches now, so that load() finds them. Call it once all work on the step before is enqueued.
  void read_ahead(std::int64_t step);
  /// Whether the last read_ahead() was of this step and failed.
  [[nodiscard]] bool lacks(std::int64_t step) const { return step == unreadable_step_; }
  /// Reads a step's micro-batches, unless they have been read. @throws what Dataset::read() throws.
  void read(std::int64_t step);
  /// Milliseconds so far in which the compute stream was idle while batches were read; CPU only.
  [[nodiscard]] double waited_ms() const { return waited_ms_; }

 private:
  /// A micro-batch in the host's memory.
  struct Round {
    data::Batch batch;
    BatchUpload upload;
  };
  /// The micro-batches of one step, in use until the device has passed `done`.
  struct Slot {
    std::int64_t step = 0;  ///< 0: empty
    std::vector<Round> rounds;
    Event done;
  };
  [[nodiscard]] Slot& slot_of(std::int64_t step) { return slots_[static_cast<std::size_t>(step % 2)]; }
  /// Called when all work on the step loaded last is enqueued.
  void end_step();

  nn::Context& context_;
  const fsdp::DeviceMesh& device_mesh_;
  const data::Dataset& dataset_;
  data::Sampler sampler_;
  data::BatchPlan plan_;
  int data_rank_;
  std::int64_t loaded_step_ = 0;  // 0: no step is being enqueued
  std::int64_t unreadable_step_ = 0;
  std::array<Slot, 2> slots_;
  double waited_ms_ = 0;
};

}  // namespace mica::train
