// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mica::checkpoint {

/// Rules for which of a run's checkpoints a save keeps: a checkpoint is kept if any rule applies. The newest one, from which the run
/// resumes, is always kept, and so is the newest one that has not diverged. Checkpoints that were set aside are never deleted.
struct Retention {
  // NOLINTNEXTLINE(google-explicit-constructor): SaveOptions{.keep = 2}
  Retention(int newest_ones = 0, std::int64_t every_steps = 0, int best_ones = 0)
      : newest(newest_ones), every(every_steps), best(best_ones) {}

  int newest;          ///< number of newest ones; 0: all
  std::int64_t every;  ///< steps that are multiples of this; 0: none
  /// Number of those with the lowest validation losses; 0: none. Only losses are compared that were measured on the same data as the
  /// newest one.
  int best;

  friend bool operator==(const Retention&, const Retention&) = default;
};

/// A checkpoint in a run's folder, with what the rules need.
struct Keepable {
  std::string path;
  std::int64_t step = 0;
  std::optional<double> val_loss;  ///< Manifest::val_loss
  bool diverged = false;           ///< Manifest::diverged
  bool can_be_resumed = true;      ///< it holds optimizer state
  bool is_unread = false;          ///< the file system did not give its manifest: it is kept
  std::string val_data;            ///< Manifest::val_data
};

/// Why each is kept, as text: "one of the 2 newest". Without a reason it is deleted.
/// @param ascending  by step; the last one is the one just saved.
[[nodiscard]] std::vector<std::vector<std::string>> reasons_to_keep(const std::vector<Keepable>& ascending, const Retention& rules);

/// The checkpoints in a folder, up to this step.
/// @param reads_manifests  false: losses are empty, none has diverged, and all can be resumed
[[nodiscard]] std::vector<Keepable> list_keepable(const std::string& folder, std::int64_t last_step, bool reads_manifests);

/// A checkpoint, and why it is kept.
struct Kept {
  std::int64_t step = 0;
  std::vector<std::string> reasons;
};
/// All checkpoints of a folder, by the rules in the newest one's manifest. Empty if that cannot be read or has no rules.
[[nodiscard]] std::vector<Kept> kept_checkpoints(const std::string& folder);

}  // namespace mica::checkpoint
