// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "mica/checkpoint/save.hpp"

namespace mica::checkpoint {

struct SaveJob;

/// What a checkpoint says of the steps done, as far as it changes from step to step.
struct StepsDone {
  std::int64_t step = 0;
  std::int64_t tokens = 0, sequences = 0;  ///< seen so far
  std::optional<CheckpointId> parent;
  std::int64_t optimizer_steps = 0;
  std::map<std::string, std::int64_t> parameter_steps;  ///< Optimizer::parameter_steps()
  std::map<std::string, double> scalars;
};

/// Saves a run that has lost ranks. [Note: emergency checkpoint] Where replicas hold the same shards, the ranks that are left
/// may have all of them. They save the step that all have done, without MPI: its calls may never return after a rank's
/// death, and the rank's own thread may be inside one. save() therefore touches only
/// - masters and optimizer state, whose addresses are taken beforehand. The compute stream says around each update that they
///   change, and save() waits for the end of one, and holds up the next one while it reads. An update contains no collective;
/// - what the last update left in StepsDone;
/// - files. Each rank creates a claim for its shard of its step (O_EXCL: of several replicas one has it), and writes when all
///   shards of that step have been claimed. Shard rank 0 waits for the others' parts, writes manifest.json and renames the folder,
///   as a save does.
/// Ranks of one replica are at most one update apart: an update needs the norm of the gradient, to which all of them
/// contribute once they have their own. So a rank that sees a claim of the next step lets its own update run, which needs nobody
/// any more, and claims that step.
/// A step whose shards are not all left is not saved, and the run resumes from the checkpoint before.
class EmergencySaver {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long ranks wait for each other's claims, and for an update to end.
  static constexpr std::chrono::seconds kPatience{5};

  /// Whether ranks may be lost without losing a shard: there are replicas, or nothing is sharded.
  [[nodiscard]] static bool can_save(const fsdp::Root& root);

  /// Takes addresses from the model, whose optimizer state is allocated; CPU only. Between two steps; communicates with nobody.
  /// @param state  its root and optimizer outlive it; `run_id` is the same on all ranks, `tokenizer` at least shard rank 0's.
  /// @param check_owner  called before the checkpoint gets its name; throws if another job has the run's folder
  EmergencySaver(const std::string& run_folder, const SaveState& state, std::function<void()> check_owner);
  ~EmergencySaver();
  EmergencySaver(const EmergencySaver&) = delete;
  EmergencySaver& operator=(const EmergencySaver&) = delete;

  /// Masters and optimizer state change in what is enqueued on the compute stream between these two. Of a step that is given up in
  /// between nothing can be saved.
  void before_update();
  void after_update(StepsDone done);

  /// Any thread, also while others are stuck in MPI. Returns once the checkpoint is complete, whoever completed it.
  /// @throws Error if the ranks that are left do not hold all shards of one step, or an update does not end; IoError
  SaveReport save();

 private:
  class Frozen;
  enum class Claims : std::uint8_t { all, later_step, missing };

  [[nodiscard]] std::string folder_of(std::int64_t step) const;
  [[nodiscard]] std::string claims_of(std::int64_t step) const;
  /// @returns whether this rank is the one to write its shard
  bool claim(std::int64_t step);
  [[nodiscard]] Claims wait_for_claims(std::int64_t step, bool sees_later) const;
  /// @returns whether this rank has done a step after `step` in time
  bool wait_for_update(std::int64_t step);
  void write_part(std::int64_t step, SaveReport& report);
  void complete(const StepsDone& done, SaveReport& report);
  /// Of this step, or of the next one, if others found the shards of that.
  [[nodiscard]] bool has_checkpoint(std::int64_t step) const;

  fsdp::DeviceMesh& device_mesh_;
  std::function<void()> check_owner_;
  std::unique_ptr<SaveJob> job_;  // of no step in particular
  std::string checkpoints_;
  std::mutex saving_;               // one save at a time
  std::set<std::int64_t> claimed_;  // steps that this rank has claimed; under saving_

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_changing_ = false, is_frozen_ = false;
  StepsDone done_;
};

}  // namespace mica::checkpoint
