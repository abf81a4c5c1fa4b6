// SPDX-License-Identifier: Apache-2.0
#include "mica/train/dry_run.hpp"

#include <algorithm>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/core/rounding.hpp"
#include "mica/plan/step_recorder.hpp"
#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/openmp.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/step_runner.hpp"

#include "../device_choice.hpp"

namespace mica::train {
namespace {

/// Sequences of zeros.
class ZeroDataset final : public data::Dataset {
 public:
  ZeroDataset(std::int64_t num_samples, std::int64_t seq_len)
      : num_samples_(num_samples),
        tensors_{{.name = "inputs", .shape = Shape{seq_len}, .dtype = DType::i32},
                 {.name = "targets", .shape = Shape{seq_len}, .dtype = DType::i32}} {}
  [[nodiscard]] std::int64_t num_samples() const override { return num_samples_; }
  [[nodiscard]] const std::vector<data::SampleTensor>& tensors() const override { return tensors_; }
  void read(std::int64_t, std::span<const std::span<std::byte>> out) const override {
    for (const std::span<std::byte>& each : out) std::ranges::fill(each, std::byte{0});
  }
  [[nodiscard]] std::string fingerprint() const override { return "zeros"; }

 private:
  std::int64_t num_samples_;
  std::vector<data::SampleTensor> tensors_;
};

std::vector<RankPlace> places_of(const Cluster& cluster) {
  std::vector<RankPlace> places;
  for (int r = 0; r < cluster.num_ranks; ++r) {
    const int node = r / cluster.ranks_per_node;
    places.push_back({.world_rank = r, .host = fmt::format("node{}", node), .node = node, .local_rank = r % cluster.ranks_per_node});
  }
  return places;
}

/// The backend of a mesh with these places, where /dev/shm has room for what is shared.
std::string backend_of(const Config& config, const plan::Hardware& hardware, const std::vector<RankPlace>& places) {
  if (hardware.is_gpu) return "nccl";
  if (config.mesh.backend != "auto") return config.mesh.backend;
  return auto_shares_masters(config, MeshGeometry::make(places, shard_size_of(config)), places) ? "shared" : "mpi";
}

plan::RecorderOptions recorder_options(const Config& config, const Cluster& cluster, const std::string& backend) {
  plan::RecorderOptions options{.num_ranks = cluster.num_ranks,
                                .ranks_per_node = cluster.ranks_per_node,
                                .shares_memory = backend == "shared",
                                .device = cluster.hardware.is_gpu ? DeviceKind::cuda : DeviceKind::cpu,
                                .seq_len = config.train.seq_len,
                                .dtype = fsdp_options(config).param_dtype()};
  // Groups of GPUs do not stage in the pool.
  if (!cluster.hardware.is_gpu)
    options.staging_bytes = [](Collective kind, std::int64_t numel, DType dtype, int num_ranks) {
      return mpi_staging_bytes(kind, numel, dtype, num_ranks);
    };
  return options;
}

/// Like Device::make(), but from a recorder instead of a machine. The recorder outlives it.
Device make_dry_device(const Config& config, const plan::Hardware& hardware, const std::vector<RankPlace>& places,
                       const std::string& backend, plan::StepRecorder& recorder) {
  Device device;
  if (hardware.is_gpu) device.gpu = GpuInfo{.name = hardware.name};
  device.backend = backend;
  device.num_threads = hardware.is_gpu ? 1 : hardware.threads;
  if (hardware.is_gpu)
    device.host_pool = recorder.make_pool();  // keeps scratch of the CPU kernels, which GPU kernels do not need, out of the count
  device.pool = recorder.make_pool();
  CpuKernelsOptions options;
  if (hardware.is_gpu) options = {.logits_bytes = CudaKernelsOptions().logits_bytes, .adds_in_products = !config.train.deterministic};
  device.make_kernels = [options](Pool& pool) { return make_cpu_kernels(pool, options); };
  device.kernels = device.make_kernels(hardware.is_gpu ? *device.host_pool : *device.pool);
  device.kernels->record_products(recorder.products());
  const MeshGeometry geometry = MeshGeometry::make(places, shard_size_of(config));
  device.mesh = std::make_unique<Mesh>(recorder.make_world(), geometry, places);
  if (device.backend == "shared") device.mesh->require_shards_inside_nodes("mesh.backend = shared");
  const StreamMode mode = hardware.is_gpu ? StreamMode::threaded : stream_mode(config.mesh.streams, hardware.threads);
  fsdp::Streams streams = fsdp::Streams::make(mode, [&](const std::string& name, StreamMode) { return recorder.make_stream(name); });
  device.device_mesh = std::make_unique<fsdp::DeviceMesh>(*device.mesh, *device.pool, *device.kernels, std::move(streams));
  return device;
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

/// Hooks that do nothing: a module that has some is fused with no neighbour (nn::Module::runs_alone).
class StandsAlone final : public nn::ModuleHooks {
 public:
  void pre_forward(nn::Context&, nn::Module&, nn::Tensors&, nn::Record*) override {}
  void post_forward(nn::Context&, nn::Module&, nn::Tensors&, nn::Record*) override {}
  void pre_backward(nn::Context&, nn::Module&, nn::Record&, nn::Tensors&) override {}
  void post_backward(nn::Context&, nn::Module&, nn::Record&, nn::Tensors&) override {}
};

void separate_layers(nn::Module& model) {
  const auto hooks = std::make_shared<StandsAlone>();
  model.for_each_module([&](const std::string&, nn::Module& module) {
    if (!module.hooks()) module.set_hooks(hooks);
  });
}

}  // namespace

DryRun dry_run(const Config& config, const Cluster& cluster) {
  const data::BatchPlan batch = data::make_batch_plan(config.train.micro_batch, cluster.num_ranks, config.train.global_batch);
  constexpr std::int64_t kMostRounds = 4096;  // each one is run and recorded
  require<ConfigError>(batch.accumulation <= kMostRounds,
                       "train.global_batch = {} on {} ranks is {} micro-batches per step on each rank, and mica-plan takes at most {}: "
                       "plan with more ranks or a larger train.micro_batch",
                       config.train.global_batch, cluster.num_ranks, batch.accumulation, kMostRounds);
  const OpenMpThreads threads(cluster.hardware.is_gpu ? 1 : cluster.hardware.threads);
  const std::vector<RankPlace> places = places_of(cluster);
  const std::string backend = backend_of(config, cluster.hardware, places);
  plan::StepRecorder recorder(recorder_options(config, cluster, backend));
  const Device device = make_dry_device(config, cluster.hardware, places, backend, recorder);
  ShardedModel model = ShardedModel::make(config, device);
  DryRun run{.batch = batch, .mode = device.device_mesh->streams().mode};
  run.shard_size = device.mesh->shard_size();
  run.num_parameters = count_parameters(*model.module);
  Buffer snapshot;
  if (config.checkpoint.async && !device.gpu) {
    const std::int64_t bytes = checkpoint::snapshot_bytes(*model.root, config.checkpoint.optimizer ? model.optimizer.get() : nullptr);
    snapshot = device.pool->allocate(bytes, MemoryRole::snapshot, device.device_mesh->compute());
  }
  model.root->initialize(config.run.seed);
  if (cluster.software) separate_layers(*model.module);
  device.pool->reset_peak();
  constexpr int kSteps = 3;
  const ZeroDataset zeros((kSteps + 1) * batch.global_batch(), config.train.seq_len);
  StepRunner runner(config, model, zeros, batch, device.device_mesh->mesh().rank());
  static_cast<void>(runner.run(1, config.optim.lr));
  recorder.begin();
  for (int step = 2; step <= kSteps; ++step) {
    static_cast<void>(runner.run(step, config.optim.lr));
    recorder.mark();
  }
  run.record = recorder.take();
  run.memory = device.pool->stats();
  if (device.gpu) {
    const std::int64_t workspace = gpu_workspace_bytes(config);
    run.memory.peak += workspace;
    run.memory.peak_by_role[static_cast<std::size_t>(MemoryRole::workspace)] += workspace;
  }
  const MemoryStats& offloaded = device.device_mesh->offload().pool->stats();
  run.offload_peak = offloaded.peak;
  run.offload_reserved = offloaded.reserved_peak;
  const auto compute = std::ranges::find(run.record.streams, device.device_mesh->compute().name());
  run.compute_stream = static_cast<std::uint8_t>(compute - run.record.streams.begin());
  return run;
}

}  // namespace mica::train
