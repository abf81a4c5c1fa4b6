// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/plan/memory_plan.hpp"
#include "mica/plan/volume.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// What a run will need, computed before anything is allocated.
struct StartPlan {
  plan::MemoryPlan memory;
  std::vector<plan::AxisVolume> volume;
  int num_sharing_units = 0;      ///< units with UnitStorage::shares_masters()
  std::int64_t shared_bytes = 0;  ///< this rank's part of their masters, included in `memory`
};

/// Walks through one step of the config's model on this device's mesh, without computing it.
[[nodiscard]] StartPlan make_start_plan(const Config& config, const Device& device, const ShardedModel& model,
                                        const data::BatchPlan& batch);

}  // namespace mica::train
