// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "mica/checkpoint/save.hpp"

namespace mica::checkpoint {

struct SaveJob;

/// The values in a manifest that change from step to step.
struct StepsDone {
  std::string run_id;  ///< of the checkpoint; another one after a rollback, since checkpoints of the same steps may have been set aside
  std::int64_t step = 0;
  std::int64_t tokens = 0, sequences = 0;  ///< seen so far
  std::optional<CheckpointId> parent;
  std::int64_t optimizer_steps = 0;
  std::map<std::string, std::int64_t> parameter_steps;  ///< Optimizer::parameter_steps()
  std::map<std::string, double> scalars;
  bool diverged = false;  ///< Manifest::diverged, as far as the host knows
};

/// Saves a run that has lost ranks. [Note: emergency checkpoint] If replicas hold the same shards, the surviving ranks may have
/// all shards. They save the last step that all of them have done, without MPI: after a rank's death MPI calls may never return,
/// and the rank's main thread may be inside one. So save() uses only
/// - masters and optimizer state, at addresses recorded in advance. Tasks on the compute stream mark the begin and end of each
///   update of them; save() waits for the end, and delays the next update while it reads. An update waits for no rank;
/// - the StepsDone of the last update;
/// - files. Each rank creates a claim file for its shard of its step (O_EXCL, so that one replica gets it), and writes when all
///   shards of that step have been claimed. Shard rank 0 waits for the others' parts, writes manifest.json and renames the folder,
///   as a save does. A rank that cannot write leaves a file with the reason, which ends the others' wait. One that gives up, or goes on to
///   the next step, takes its claim back.
/// Ranks of one replica are at most one update apart: an update needs the gradient's norm, to which each of them contributes when
/// its own gradient is ready. So a rank that sees a claim for the next step lets its own update run, which waits for no other rank,
/// and claims that step.
/// A step of which a shard is lost cannot be saved; the run then resumes from the checkpoint before.
class EmergencySaver {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long ranks wait for each other's claims, and for an update to end.
  static constexpr std::chrono::seconds kPatience{5};

  /// Whether a rank can be lost without losing a shard: there are replicas, or nothing is sharded. Models with buffers are left out.
  [[nodiscard]] static bool can_save(const fsdp::Root& root);

  /// Records addresses of the model, which has no buffers, and of its optimizer state, which must be allocated; CPU only. Between two
  /// steps. Not collective.
  /// @param state  its root and optimizer outlive it; `run_id` is the same on all ranks, `tokenizer` at least shard rank 0's.
  /// @param check_owner  called before the checkpoint gets its name; throws if another job owns the run's folder
  EmergencySaver(const std::string& run_folder, const SaveState& state, std::function<void()> check_owner);
  ~EmergencySaver();
  EmergencySaver(const EmergencySaver&) = delete;
  EmergencySaver& operator=(const EmergencySaver&) = delete;

  /// Call them around the enqueuing of an update: masters and optimizer state may change only in between. If a step is abandoned in
  /// between, nothing can be saved.
  void before_update();
  void after_update(StepsDone done);

  /// Any thread, even while others are stuck in MPI. Returns when the checkpoint is complete, even if another rank completed it.
  /// @throws Error if the surviving ranks do not hold all shards of one step, an update does not end, or another rank could not write;
  /// IoError. Then it may be called again.
  SaveReport save();

 private:
  class Frozen;
  enum class Claims : std::uint8_t { all, saved, later_step, missing };
  using Failures = std::map<std::string, std::filesystem::file_time_type>;  // when they were written, by path

  /// Claims that were made under another id do not count.
  void set_run_id(const std::string& run_id);
  [[nodiscard]] std::string folder_of(std::int64_t step) const;
  /// What a rank leaves there once its shard is written: its entry in the manifest.
  [[nodiscard]] std::string part_of(std::int64_t step, int shard_rank) const;
  [[nodiscard]] std::string temporary_of(std::int64_t step) const;
  [[nodiscard]] std::string claims_of(std::int64_t step) const;
  /// @returns whether this rank is to write its shard
  bool claim(std::int64_t step);
  /// Takes this rank's claim back, so that nobody who comes later waits for its part.
  void withdraw(std::int64_t step);
  /// @param num_claimed  set to the most shards that were claimed at a time
  [[nodiscard]] Claims wait_for_claims(std::int64_t step, bool sees_later, int& num_claimed) const;
  /// @returns whether this rank finished a step after `step` within kPatience
  bool wait_for_update(std::int64_t step);
  /// Why ranks could not write what they claimed of this step or the next one: files of telling_others().
  [[nodiscard]] Failures failures_of(std::int64_t step) const;
  /// @throws Error with the text of a failure that is not among the earlier ones
  void fail_with_others_since(const Failures& earlier, std::int64_t step) const;
  /// Leaves the text of an exception for the other ranks, which wait for this one's files, and throws it again.
  void telling_others(std::int64_t step, const std::function<void()>& work) const;
  void write_part(std::int64_t step, SaveReport& report);
  /// Once all shards of the step are claimed: waits for the checkpoint, and completes it on the rank that is to.
  /// @param index  of model.h5, on that rank  @returns false if others have gone on to the next step without it
  bool finish(const StepsDone& done, bool is_mine, const Failures& earlier_failures, std::future<FileEntry>& index, SaveReport& report);
  void complete(const StepsDone& done, const FileEntry& index, SaveReport& report);
  /// Whether there is one of this step, or of the next one, which other ranks may have saved instead.
  [[nodiscard]] bool has_checkpoint(std::int64_t step) const;

  fsdp::DeviceMesh& device_mesh_;
  std::function<void()> check_owner_;
  std::unique_ptr<SaveJob> job_;  // save() sets its run id and step
  std::string checkpoints_;
  std::mutex saving_;               // one save at a time
  std::set<std::int64_t> claimed_;  // steps that this rank has claimed; under saving_
  bool has_tried_ = false;          // to save; under saving_

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_changing_ = false, is_frozen_ = false;
  StepsDone done_;
};

}  // namespace mica::checkpoint
