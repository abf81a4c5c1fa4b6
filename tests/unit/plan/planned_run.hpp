// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/fsdp/root.hpp"
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/plan/memory_plan.hpp"
#include "mica/plan/step_recorder.hpp"

#include "testing/local_group.hpp"

namespace mica::test {

struct Input {
  Shape shape;
  DType dtype = DType::f32;
};

/// What is trained for a few steps, for real and on a dry device.
struct PlannedRun {
  std::function<std::unique_ptr<nn::Module>()> make_model;
  fsdp::WrapPolicy wrap = fsdp::wrap_nothing();
  std::function<void(fsdp::Root&)> prepare{};  // after wrapping: all-gather hooks
  std::vector<Input> inputs;
  fsdp::Options options;
  nn::Recompute recompute = nn::Recompute::none;
  int shard_size = 0;  // 0: the world
  StreamMode mode = StreamMode::inlined;
  int micro_batches = 1;
  bool no_sync = false;
  bool steps_in_backward = false;
  bool evaluates = false;  // before the last step, on the real device only: an evaluation must not need memory that is not planned
  int num_state_kinds = 1;
  bool shares_memory = false;                                      // the world's groups do (whoever makes the world sees to it)
  decltype(plan::RecorderOptions::staging_bytes) staging_bytes{};  // of the groups that the run communicates with
};

/// What a pool and the groups counted.
struct MeasuredStep {
  std::int64_t start, forward_peak, backward_peak, after_backward, after_step, after_zero_grad;
};
struct Measured {
  std::vector<MeasuredStep> steps;
  std::int64_t peak = 0;
  std::int64_t reserved = 0;  // at the end
  plan::BytesByRole peak_by_role{};
  std::int64_t offload_peak = 0;
  CollectiveCounts last_step_shard, last_step_replicate, last_step_world;
};

using MakeWorld = std::function<std::unique_ptr<ProcessGroup>(Pool&)>;

/// Trains three steps on this rank. @collective
/// @param dry  not null: the run is on this device, which records the last step, and `make_world` is not used.
inline Measured measure_run(const MakeWorld& make_world, const PlannedRun& run, plan::StepRecorder* dry = nullptr) {
  constexpr int num_steps = 3;
  Measured measured;
  const std::unique_ptr<Pool> pool = dry ? dry->make_pool() : make_cpu_pool();
  std::unique_ptr<ProcessGroup> world = dry ? dry->make_world() : make_world(*pool);
  const std::unique_ptr<Kernels> kernels = make_cpu_kernels(*pool);
  MeshGeometry geometry;
  geometry.world_size = world->num_ranks();
  geometry.shard_size = run.shard_size == 0 ? geometry.world_size : run.shard_size;
  geometry.replicas = geometry.world_size / geometry.shard_size;
  Mesh mesh(std::move(world), geometry);
  fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(run.mode, [&](const std::string& name, StreamMode mode) {
                                 return dry ? dry->make_stream(name) : make_cpu_stream(name, mode);
                               }));
  const std::unique_ptr<nn::Module> model = run.make_model();
  fsdp::Root& root = fsdp::auto_wrap(*model, device_mesh, run.options, run.wrap);
  nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};
  context.recompute = run.recompute;
  if (run.prepare) run.prepare(root);

  const auto note_peak = [&] {
    const MemoryStats& stats = pool->stats();
    measured.peak = std::max(measured.peak, stats.peak);
    for (std::size_t role = 0; role < kNumMemoryRoles; ++role) {
      measured.peak_by_role[role] = std::max(measured.peak_by_role[role], stats.peak_by_role[role]);
    }
    const std::int64_t peak = stats.peak;
    pool->reset_peak();
    return peak;
  };
  std::vector<std::vector<char>> input_memory;
  for (const Input& input : run.inputs) {
    input_memory.emplace_back(static_cast<std::size_t>(input.shape.numel() * dtype_bytes(input.dtype)), '\0');
  }
  const bool has_rows = !run.inputs.empty();
  context.sequences.assign(has_rows ? static_cast<std::size_t>(run.inputs[0].shape[0]) : 0, 0);
  float dloss = 1;
  std::vector<Buffer> optimizer_state;
  float norm = 0;
  const std::vector<ProcessGroup*> shard_groups{&device_mesh.unshard_group(), &device_mesh.reduce_group(), &device_mesh.shard_norm_group()};

  const auto allocate_state = [&](const fsdp::UnitStorage& storage) {  // an optimizer's, without the optimizer
    if (run.options.cpu_offload == fsdp::CpuOffload::parameters) return;
    for (int kind = 0; kind < run.num_state_kinds; ++kind) {
      optimizer_state.push_back(pool->allocate(storage.layout().shard_numel() * 4, MemoryRole::optimizer, device_mesh.compute()));
    }
  };
  int step = 1;
  if (run.steps_in_backward) {
    root.set_after_reduction([&](fsdp::UnitStorage& storage) {
      if (step == 1) allocate_state(storage);
      storage.zero_grad();
    });
  }
  root.initialize(1);
  for (; step <= num_steps; ++step) {
    if (dry && step == num_steps) dry->begin();
    const auto inputs = [&] {
      nn::Tensors xs;
      for (std::size_t k = 0; k < run.inputs.size(); ++k) {
        xs.emplace_back(TensorView(input_memory[k].data(), run.inputs[k].shape, run.inputs[k].dtype));
      }
      return xs;
    };
    if (run.evaluates && !dry && step == num_steps) {
      context.training = false;
      (void)model->forward(context, inputs(), nullptr);
      context.training = true;
    }
    for (ProcessGroup* group : shard_groups) group->reset_counts();
    device_mesh.replicate_group().reset_counts();
    device_mesh.all_ranks_group().reset_counts();
    MeasuredStep& found = measured.steps.emplace_back();
    found.start = pool->stats().current;
    note_peak();
    for (int i = 0; i < run.micro_batches; ++i) {
      if (run.no_sync) root.set_gradient_sync(i + 1 == run.micro_batches);
      nn::Record record;
      const nn::Tensors ys = model->forward(context, inputs(), &record);
      found.forward_peak = std::max(found.forward_peak, note_peak());
      nn::Tensors dys;
      for (const Tensor& y : ys) dys.emplace_back(TensorView(&dloss, y.shape(), y.dtype()));
      model->backward(context, std::move(record), std::move(dys));
      found.backward_peak = std::max(found.backward_peak, note_peak());
    }
    found.after_backward = pool->stats().current;
    if (run.steps_in_backward) {
      // Every unit has been stepped.
    } else if (root.options().deterministic) {  // clip_grad_norm's exact sum
      ProcessGroup& group = device_mesh.shard_norm_group();
      std::vector<std::int64_t> limbs(static_cast<std::size_t>(20 * group.num_ranks()), 0);
      const TensorView all(limbs.data(), Shape{20 * group.num_ranks()}, DType::i64);
      group.all_gather(device_mesh.compute(), "norm", all.slice(20 * group.rank(), 20), all);
      device_mesh.compute().synchronize();
    } else {
      device_mesh.shard_norm_group().all_reduce(device_mesh.compute(), "norm", TensorView(&norm, Shape{1}, DType::f32), ReduceOp::sum);
    }
    if (!run.steps_in_backward) {
      root.reshard();  // as an optimizer does
      for (const fsdp::Unit* unit : root.units()) {
        if (step == 1 && unit->storage() && unit->storage()->sharded_grad()) allocate_state(*unit->storage());
      }
    }
    found.after_step = pool->stats().current;
    root.zero_grad();
    found.after_zero_grad = pool->stats().current;
    device_mesh.compute().synchronize();
  }
  note_peak();
  measured.reserved = pool->stats().reserved;
  measured.offload_peak = device_mesh.offload().pool->stats().peak;
  const auto add = [](CollectiveCounts& sum, const CollectiveCounts& counts) {
    for (std::size_t kind = 0; kind < kNumCollectives; ++kind) {
      sum.calls[kind] += counts.calls[kind];
      sum.bytes[kind] += counts.bytes[kind];
    }
  };
  for (ProcessGroup* group : shard_groups) add(measured.last_step_shard, group->counts());
  add(measured.last_step_replicate, device_mesh.replicate_group().counts());
  add(measured.last_step_world, device_mesh.all_ranks_group().counts());
  return measured;
}

inline plan::RecorderOptions dry_options(int num_ranks, int rank, const PlannedRun& run) {
  return {.nodes = std::vector<int>(static_cast<std::size_t>(num_ranks), 0),
          .rank = rank,
          .shares_memory = run.shares_memory,
          .staging_bytes = run.staging_bytes};
}

inline void expect_equal(const CollectiveCounts& dry, const CollectiveCounts& real, const std::string& what) {
  for (std::size_t kind = 0; kind < kNumCollectives; ++kind) {
    const std::string_view name = collective_name(static_cast<Collective>(kind));
    EXPECT_EQ(dry.calls[kind], real.calls[kind]) << what << ": calls of " << name;
    EXPECT_EQ(dry.bytes[kind], real.bytes[kind]) << what << ": bytes of " << name;
  }
}

/// The dry device counts what the real one counts, to the byte.
inline void expect_equal(const Measured& dry, const Measured& real, const std::string& what) {
  ASSERT_EQ(dry.steps.size(), real.steps.size()) << what;
  for (std::size_t i = 0; i < real.steps.size(); ++i) {
    const std::string step = what + ", step " + std::to_string(i + 1);
    EXPECT_EQ(dry.steps[i].start, real.steps[i].start) << step;
    EXPECT_EQ(dry.steps[i].forward_peak, real.steps[i].forward_peak) << step;
    EXPECT_EQ(dry.steps[i].backward_peak, real.steps[i].backward_peak) << step;
    EXPECT_EQ(dry.steps[i].after_backward, real.steps[i].after_backward) << step;
    EXPECT_EQ(dry.steps[i].after_step, real.steps[i].after_step) << step;
    EXPECT_EQ(dry.steps[i].after_zero_grad, real.steps[i].after_zero_grad) << step;
  }
  EXPECT_EQ(dry.peak, real.peak) << what;
  EXPECT_EQ(dry.offload_peak, real.offload_peak) << what;
  for (std::size_t role = 0; role < kNumMemoryRoles; ++role) {
    EXPECT_EQ(dry.peak_by_role[role], real.peak_by_role[role]) << what << ": peak of " << memory_role_name(static_cast<MemoryRole>(role));
  }
  expect_equal(dry.last_step_shard, real.last_step_shard, what + ", shard axis");
  expect_equal(dry.last_step_replicate, real.last_step_replicate, what + ", replicate axis");
  expect_equal(dry.last_step_world, real.last_step_world, what + ", world");
}

}  // namespace mica::test
