// SPDX-License-Identifier: Apache-2.0
#include "mica/train/dry_run.hpp"

#include <algorithm>
#include <utility>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/comm/gpu_groups.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/plan/step_recorder.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/step_runner.hpp"

namespace mica::train {
namespace {

/// Sequences of a plan, whose tokens nobody reads.
class UnreadDataset final : public data::Dataset {
 public:
  UnreadDataset(std::int64_t num_samples, std::int64_t seq_len)
      : num_samples_(num_samples),
        tensors_{{.name = "inputs", .shape = Shape{seq_len}, .dtype = DType::i32},
                 {.name = "targets", .shape = Shape{seq_len}, .dtype = DType::i32}} {}
  [[nodiscard]] std::int64_t num_samples() const override { return num_samples_; }
  [[nodiscard]] const std::vector<data::SampleTensor>& tensors() const override { return tensors_; }
  void read(std::int64_t, std::span<const std::span<std::byte>>) const override {}
  [[nodiscard]] std::string fingerprint() const override { return "unread"; }

 private:
  std::int64_t num_samples_;
  std::vector<data::SampleTensor> tensors_;
};

plan::RecorderOptions recorder_options(const Config& config, const DryMachine& machine) {
  std::vector<int> nodes;
  for (const RankPlace& place : machine.places) nodes.push_back(place.node);
  plan::RecorderOptions options{.nodes = std::move(nodes),
                                .rank = machine.rank,
                                .shares_memory = machine.backend == "shared",
                                .device = machine.gpu ? DeviceKind::cuda : DeviceKind::cpu,
                                .seq_len = config.train.seq_len,
                                .dtype = fsdp_options(config).param_dtype()};
  // Groups of GPUs do not stage in the pool.
  if (machine.gpu) {
    if (machine.backend == "nccl" && config.mesh.register_buffers) options.own_blocks_from = NcclOptions{}.register_from_bytes;
  } else {
    options.staging_bytes = [](Collective kind, std::int64_t numel, DType dtype, int num_ranks) {
      return mpi_staging_bytes(kind, numel, dtype, num_ranks);
    };
  }
  return options;
}

/// Like Device::make(), but from a recorder instead of a machine. The recorder outlives it.
Device make_dry_device(const Config& config, const DryMachine& machine, plan::StepRecorder& recorder) {
  Device device;
  device.gpu = machine.gpu;
  device.backend = machine.backend;
  if (!machine.counts_scratch) device.host_pool = recorder.make_pool();
  device.pool = recorder.make_pool();
  device.make_kernels = machine.make_kernels;
  device.kernels = device.make_kernels(machine.counts_scratch ? *device.pool : *device.host_pool);
  device.kernels->record_products(recorder.products());
  const MeshGeometry geometry = MeshGeometry::make(machine.places, shard_size_of(config));
  device.mesh = std::make_unique<Mesh>(recorder.make_world(), geometry, machine.places);
  if (device.backend == "shared") device.mesh->require_shards_inside_nodes("mesh.backend = shared");
  fsdp::Streams streams =
      fsdp::Streams::make(machine.mode, [&](const std::string& name, StreamMode) { return recorder.make_stream(name); });
  device.device_mesh = std::make_unique<fsdp::DeviceMesh>(*device.mesh, *device.pool, *device.kernels, std::move(streams));
  return device;
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

/// A step's memory, phase by phase.
class StepMeter {
 public:
  explicit StepMeter(plan::MemoryMeter& meter) : meter_(meter) {
    static_cast<void>(meter.take_peak());  // of what came before the step
    step_.start = meter.now();
  }

  void end(StepPhase phase) {
    if (phase == StepPhase::forward) keep_higher(step_.forward_peak);
    if (phase == StepPhase::backward) keep_higher(step_.backward_peak);
    if (phase == StepPhase::backward) step_.after_backward = meter_.now();
    if (phase == StepPhase::update) step_.optimizer_peak = meter_.take_peak();
  }
  [[nodiscard]] plan::StepMemory take() {
    step_.end = meter_.now();
    return step_;
  }

 private:
  /// Over all micro-batches.
  void keep_higher(plan::MemoryLevel& highest) {
    const plan::MemoryLevel peak = meter_.take_peak();
    if (peak.total > highest.total) highest = peak;
  }

  plan::MemoryMeter& meter_;
  plan::StepMemory step_;
};

}  // namespace

DryRun dry_run(const Config& config, const DryMachine& machine, const data::BatchPlan& batch, int num_steps) {
  plan::StepRecorder recorder(recorder_options(config, machine));
  const Device device = make_dry_device(config, machine, recorder);
  ShardedModel model = ShardedModel::make(config, device);
  DryRun run{.mode = machine.mode};
  run.shard_size = device.mesh->shard_size();
  run.num_parameters = model.module->num_parameters();
  run.checkpoint_bytes = checkpoint::snapshot_bytes(*model.root, config.checkpoint.optimizer ? model.optimizer.get() : nullptr);
  Buffer snapshot;
  if (saves_in_background(config) && !device.gpu) {
    snapshot = device.pool->allocate(run.checkpoint_bytes, MemoryRole::snapshot, device.device_mesh->compute());
  }
  model.root->initialize(config.run.seed);
  if (!machine.fuses_layers) separate_layers(*model.module);
  plan::MemoryMeter meter(*device.pool);
  const UnreadDataset dataset((num_steps + 1) * batch.global_batch(), config.train.seq_len);
  Config in_order = config;
  in_order.data.order = "sequential";  // as good; shuffling would take as long as the rest of a plan
  StepRunner runner(in_order, model, dataset, batch, device.mesh->rank());
  for (int step = 1; step <= num_steps; ++step) {
    StepMeter step_meter(meter);
    static_cast<void>(runner.run(step, config.optim.lr, [&](StepPhase phase) { step_meter.end(phase); }));
    run.step_memory = step_meter.take();
    if (step == 1) {
      recorder.begin();
    } else {
      recorder.mark();
    }
  }
  run.record = recorder.take();
  run.memory = meter.stats();
  const MemoryStats& offloaded = device.device_mesh->offload().pool->stats();
  run.offload_peak = offloaded.peak;
  if (device.gpu) run.offload_peak -= offloaded.peak_of(MemoryRole::workspace);  // batches on their way to the GPU
  run.offload_reserved = offloaded.reserved_peak;
  const auto compute = std::ranges::find(run.record.streams, device.device_mesh->compute().name());
  run.compute_stream = static_cast<std::uint8_t>(compute - run.record.streams.begin());
  return run;
}

}  // namespace mica::train
