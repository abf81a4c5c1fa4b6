// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/plan/volume.hpp"
#include "mica/train/dry_run.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// What a run will need, computed before anything is allocated.
struct StartPlan {
  plan::StepMemory step_memory;
  MemoryStats memory;  ///< peaks of the rank's pool
  std::int64_t offload_peak = 0;
  std::vector<plan::CollectiveVolume> volume;  ///< of a step
  int num_sharing_units = 0;                   ///< units with UnitStorage::shared_bytes()
  std::int64_t shared_bytes = 0;               ///< this rank's part of them, included in `memory`
};

/// By a dry run of the config on this rank's device. Of a step of many micro-batches only a few are run: all but the first and the last are
/// alike.
[[nodiscard]] StartPlan make_start_plan(const Config& config, const Device& device, const ShardedModel& model,
                                        const data::BatchPlan& batch);

}  // namespace mica::train
