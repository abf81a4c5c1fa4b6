// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: what saving in the background costs training.

#include <string>

#include "mica/comm/run_app.hpp"
#include "mica/train/setup.hpp"

namespace mica::train::bench {

/// Medians, in seconds, of the slowest rank.
struct AsyncFigures {
  double copy_s = 0;             ///< one copy of the shards in memory, by the compute stream's threads
  double stall_s = 0;            ///< AsyncSaver::start()
  double write_s = 0;            ///< from its return until the checkpoint is complete
  double step_s = 0;             ///< a training step while nothing is written
  double overlapped_step_s = 0;  ///< a training step while a checkpoint is written
};
struct AsyncOptions {
  std::int64_t steps = 4, repeats = 5;
};
/// @collective
[[nodiscard]] AsyncFigures measure_async(const App& app, const Config& config, Device& device, ShardedModel& model,
                                         const std::string& run_folder, const AsyncOptions& options);

}  // namespace mica::train::bench
