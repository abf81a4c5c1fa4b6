// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/data/batch_plan.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/train/start_plan.hpp"

namespace mica::train {

/// Refuses a run whose plan exceeds the node's memory, or the GPU's, before anything is allocated.
/// @collective @throws ConfigError on all ranks, naming the memory needed and available
void check_memory(const mpi::Communicator& world, const Config& config, const Device& device, const data::BatchPlan& batch,
                  const StartPlan& start);

}  // namespace mica::train
