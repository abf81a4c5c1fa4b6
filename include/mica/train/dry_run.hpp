// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "mica/data/batch_plan.hpp"
#include "mica/device/pool.hpp"
#include "mica/device/stream.hpp"
#include "mica/plan/hardware.hpp"
#include "mica/plan/software.hpp"
#include "mica/plan/step_record.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// A cluster that need not exist: rank r is on node r / ranks_per_node.
struct Cluster {
  plan::Hardware hardware;
  int num_ranks = 1;
  int ranks_per_node = 1;
  std::optional<plan::Software> software{};  ///< whose kernels train there; none: Mica's
};

struct DryRun {
  plan::StepRecord record;  ///< of steps 2 and 3; later steps repeat step 3
  MemoryStats memory;       ///< of the rank's pool, steps 1 to 3: counts and peaks
  std::int64_t offload_peak = 0;
  std::int64_t offload_reserved = 0;  ///< the pages of offload_peak
  std::int64_t num_parameters = 0;
  data::BatchPlan batch;
  StreamMode mode = StreamMode::threaded;
  std::uint8_t compute_stream = 0;
  int shard_size = 1;  ///< of the mesh
};

/// Runs three steps of the config's training as the trainer would (StepRunner, Schedule, optimizer), as the first rank of the cluster, on a
/// device without computation or memory ([Note: dry device]). Data files are not opened. With a GPU's hardware the kernels' workspace is
/// estimated (the logits, cuBLASLt's), and added to the peak. With another software no layers are fused.
/// @throws ConfigError for what the trainer would refuse for this config on that many ranks; for mesh.backend = shared; for too many
/// micro-batches per step
[[nodiscard]] DryRun dry_run(const Config& config, const Cluster& cluster);

}  // namespace mica::train
