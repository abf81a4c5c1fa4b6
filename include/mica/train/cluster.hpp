// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "mica/plan/hardware.hpp"
#include "mica/plan/software.hpp"
#include "mica/train/dry_run.hpp"

namespace mica::train {

/// A cluster that need not exist: rank r is on node r / ranks_per_node.
struct Cluster {
  plan::Hardware hardware;
  int num_ranks = 1;
  int ranks_per_node = 1;
  std::optional<plan::Software> software{};  ///< whose kernels train there; none: Mica's
};

/// train.micro_batch and train.global_batch on that many ranks. @throws ConfigError for more micro-batches per step than the
/// config or mica-plan takes
[[nodiscard]] data::BatchPlan batch_on(const Cluster& cluster, const Config& config);

/// Three steps as the first rank of the cluster. With a GPU's hardware the kernels' workspace is estimated (the logits, cuBLASLt's), and
/// added to the peak. With another software layers are fused if that says so.
/// @throws ConfigError as dry_run() and batch_on(); for mesh.backend = shared over nodes
[[nodiscard]] DryRun dry_run(const Config& config, const Cluster& cluster);

}  // namespace mica::train
