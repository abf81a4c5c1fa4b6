// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/data/batch_plan.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/train/start_plan.hpp"

namespace mica::train {

/// Refuses what the node's memory, or the GPU's, cannot hold, by the plan, before anything is allocated.
/// @collective @throws ConfigError on all ranks, naming what is needed and what there is
void check_memory(const mpi::Communicator& world, const Config& config, const Device& device, const data::BatchPlan& batch,
                  const StartPlan& start);

}  // namespace mica::train
