// SPDX-License-Identifier: Apache-2.0
#include "mica/train/cluster.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"
#include "mica/optim/moment_precision.hpp"
#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/openmp.hpp"
#include "mica/train/setup.hpp"

#include "../device_choice.hpp"

namespace mica::train {
namespace {

std::vector<RankPlace> places_of(const Cluster& cluster) {
  std::vector<RankPlace> places;
  for (int r = 0; r < cluster.num_ranks; ++r) {
    const int node = r / cluster.ranks_per_node;
    places.push_back({.world_rank = r, .host = fmt::format("node{}", node), .node = node, .local_rank = r % cluster.ranks_per_node});
  }
  return places;
}

/// Refuses what mica-train would refuse on this hardware; nothing else does so on a dry device.
void require_fits(const Config& config, const plan::Hardware& hardware) {
  const std::string& device = config.mesh.device;
  require<ConfigError>(device == "auto" || (device == "cuda") == hardware.is_gpu,
                       "mesh.device = {}, but {} is a {}: plan for other hardware, or leave mesh.device out", device, hardware.name,
                       hardware.is_gpu ? "GPU" : "CPU");
  require_backend_on(hardware.is_gpu, config.mesh.backend);
  require<ConfigError>(config.mesh.backend != "staged",
                       "mesh.backend = staged: copies through the host's memory are not planned; plan with mesh.backend=nccl");
  optim::require_precision_on(hardware.is_gpu ? DeviceKind::cuda : DeviceKind::cpu,
                              optim::moment_precision_from_name(config.optim.state_dtype));
}

/// The backend of a mesh with these places, where /dev/shm has room for what is shared.
std::string backend_of(const Config& config, const plan::Hardware& hardware, const std::vector<RankPlace>& places) {
  if (hardware.is_gpu) return "nccl";
  if (config.mesh.backend != "auto") return config.mesh.backend;
  return auto_shares_memory(config, MeshGeometry::make(places, shard_size_of(config)), places) ? "shared" : "mpi";
}

/// Peak workspace of the GPU kernels: cuBLASLt's (tensor/cuda/products.cpp), and the logits of the rows that the head computes at a time
/// (tensor/cuda/head_loss.cu).
std::int64_t gpu_workspace_bytes(const Config& config) {
  constexpr std::int64_t kCublasBytes = std::int64_t{64} << 20;
  const std::int64_t element = config.train.f32_logits ? dtype_bytes(DType::f32) : dtype_bytes(fsdp_options(config).param_dtype());
  const std::int64_t row = round_up(config.model.vocab_size, std::int64_t{16}) * element;
  const std::int64_t rows = std::min(config.train.micro_batch * config.train.seq_len, CudaKernelsOptions().logits_bytes / row);
  return kCublasBytes + std::max<std::int64_t>(1, rows) * row;
}

DryMachine machine_of(const Config& config, const Cluster& cluster) {
  const plan::Hardware& hardware = cluster.hardware;
  require_fits(config, hardware);
  CpuKernelsOptions options;
  if (hardware.is_gpu) options = {.logits_bytes = CudaKernelsOptions().logits_bytes};
  DryMachine machine{.places = places_of(cluster),
                     .mode = hardware.is_gpu ? StreamMode::threaded : stream_mode(config.mesh.streams, hardware.threads),
                     .make_kernels = [options](Pool& pool) { return make_cpu_kernels(pool, options); },
                     .counts_scratch = !hardware.is_gpu,
                     .fuses_layers = !cluster.software || cluster.software->fuses_layers};
  machine.backend = backend_of(config, hardware, machine.places);
  if (hardware.is_gpu) machine.gpu = GpuInfo{.name = hardware.name};
  return machine;
}

}  // namespace

data::BatchPlan batch_on(const Cluster& cluster, const Config& config) {
  const data::BatchPlan batch = data::make_batch_plan(config.train.micro_batch, cluster.num_ranks, config.train.global_batch);
  constexpr std::int64_t kMostRounds = 4096;  // each one is run and recorded
  require<ConfigError>(batch.accumulation <= kMostRounds,
                       "train.global_batch = {} on {} ranks is {} micro-batches per step on each rank, and mica-plan takes at most {}: "
                       "plan with more ranks or a larger train.micro_batch",
                       config.train.global_batch, cluster.num_ranks, batch.accumulation, kMostRounds);
  require_accumulates(config, batch);
  return batch;
}

DryRun dry_run(const Config& config, const Cluster& cluster) {
  const data::BatchPlan batch = batch_on(cluster, config);
  const OpenMpThreads threads(cluster.hardware.is_gpu ? 1 : cluster.hardware.threads);
  DryRun run = dry_run(config, machine_of(config, cluster), batch, /*num_steps=*/3);
  if (cluster.hardware.is_gpu) {
    const std::int64_t workspace = gpu_workspace_bytes(config);
    run.memory.peak += workspace;
    run.memory.peak_by_role[static_cast<std::size_t>(MemoryRole::workspace)] += workspace;
  }
  return run;
}

}  // namespace mica::train
