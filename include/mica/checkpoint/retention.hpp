// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mica::checkpoint {

/// Which of a run's checkpoints a save leaves there: those that any of the rules keeps. The newest one, which the run resumes
/// from, is among them always. Checkpoints that were set aside are never deleted.
struct Retention {
  // NOLINTNEXTLINE(google-explicit-constructor): SaveOptions{.keep = 2}
  Retention(int newest_ones = 0, std::int64_t every_steps = 0, int best_ones = 0)
      : newest(newest_ones), every(every_steps), best(best_ones) {}

  int newest;          ///< so many of the newest; 0: all
  std::int64_t every;  ///< those of steps that are multiples of it; 0: none
  int best;            ///< so many with the lowest validation losses; 0: none

  friend bool operator==(const Retention&, const Retention&) = default;
};

/// A checkpoint in a run's folder, as far as the rules look at it.
struct Keepable {
  std::string path;
  std::int64_t step = 0;
  std::optional<double> val_loss;  ///< Manifest::val_loss
};

/// Why each is kept, for people: "one of the 2 newest". No reason: it is deleted.
/// @param ascending  by step, the one just saved last.
[[nodiscard]] std::vector<std::vector<std::string>> reasons_to_keep(const std::vector<Keepable>& ascending, const Retention& rules);

/// The checkpoints of a folder of checkpoints up to this step, with what their manifests say.
/// @param reads_losses  false: without reading manifests, and without losses
[[nodiscard]] std::vector<Keepable> list_keepable(const std::string& folder, std::int64_t last_step, bool reads_losses);

/// A checkpoint that is there, and why.
struct Kept {
  std::int64_t step = 0;
  std::vector<std::string> reasons;
};
/// Of a folder of checkpoints, by the rules of the newest one. Empty: that one's manifest cannot be read or has no rules.
[[nodiscard]] std::vector<Kept> kept_checkpoints(const std::string& folder);

}  // namespace mica::checkpoint
