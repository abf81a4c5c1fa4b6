// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/data/batch_plan.hpp"
#include "mica/device/gpu.hpp"
#include "mica/device/pool.hpp"
#include "mica/device/stream.hpp"
#include "mica/plan/memory_plan.hpp"
#include "mica/plan/step_record.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// The rank that a dry run stands for, and what it computes on.
struct DryMachine {
  std::vector<RankPlace> places;  ///< every rank's, in mesh order
  int rank = 0;
  std::string backend;           ///< as Device::backend
  std::optional<GpuInfo> gpu{};  ///< none: the CPU
  StreamMode mode = StreamMode::threaded;
  std::function<std::unique_ptr<Kernels>(Pool&)> make_kernels{};
  bool counts_scratch = true;  ///< the kernels' scratch memory is the machine's: false where other kernels stand for a GPU's
  bool fuses_layers = true;    ///< nn::Module::runs_alone
};

struct DryRun {
  plan::StepRecord record;       ///< of the steps after the first; they repeat
  plan::StepMemory step_memory;  ///< of the last step
  MemoryStats memory;            ///< of the rank's pool: counts and peaks
  std::int64_t offload_peak = 0;
  std::int64_t offload_reserved = 0;  ///< the pages of offload_peak
  std::int64_t num_parameters = 0;
  std::int64_t checkpoint_bytes = 0;  ///< that the rank writes
  StreamMode mode = StreamMode::threaded;
  std::uint8_t compute_stream = 0;
  int shard_size = 1;  ///< of the mesh
};

/// Runs steps of the config's training as the trainer would (StepRunner, Schedule, optimizer), as one rank, on a device without
/// computation or memory ([Note: dry device]). Data files are not opened.
/// @param num_steps  2 or more. Not collective.
/// @throws ConfigError for what the trainer would refuse for this config on that many ranks
[[nodiscard]] DryRun dry_run(const Config& config, const DryMachine& machine, const data::BatchPlan& batch, int num_steps);

}  // namespace mica::train
