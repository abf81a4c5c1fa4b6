// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D9: masters that are offloaded from another device are stepped by the CPU.
#include <cstring>

#include <gmock/gmock.h>

#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/optimizer.hpp"

#include "support/other_device.hpp"
#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::OtherPool;
using test::OtherStream;
using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;
using test::WeightSpec;
using ::testing::Contains;
using ::testing::Not;

const std::vector<std::vector<WeightSpec>>& offloaded_units() {
  static const std::vector<std::vector<WeightSpec>> kUnits{
      {{"a", Shape{7}, true, {1, 2, 3, 4, 5, 6, 7}}, {"b", Shape{3}, false, {-1, 0, 1}}}, {{"c", Shape{1}, true, {9}}}};
  return kUnits;
}

struct Trained {
  std::vector<Values> parameters;
  std::int64_t state_on_device = 0, state_offloaded = 0;
};

Trained train(std::unique_ptr<ProcessGroup> world, const ShardedOptions& options, bool decoupled, std::vector<std::string>* tasks) {
  ShardedWeights model(std::move(world), offloaded_units(), options);
  const auto optimizer = make_adamw(model.root(), {.decoupled = decoupled});
  for (int step = 1; step <= 3; ++step) {
    for (test::Weights* part : model.model().parts()) {
      for (auto& w : part->weights()) w.grad.assign(static_cast<std::size_t>(w.parameter->shape.numel()), 0.25F * static_cast<float>(step));
    }
    model.pass();
    const ClipCoefficient clip = clip_coefficient(model.root(), 0.5);
    if (tasks) tasks->clear();
    optimizer->step({.lr = 0.1, .grad_scale = clip.coefficient});
    if (tasks) {
      EXPECT_THAT(*tasks, Not(Contains("adamw")));
    }
    model.root().zero_grad();
  }
  Trained found;
  found.state_on_device = model.pool().stats().current_of(MemoryRole::optimizer);
  found.state_offloaded = model.device_mesh().offload().pool->stats().current_of(MemoryRole::optimizer);
  for (const char* name : {"u0.a", "u0.b", "u1.c"}) found.parameters.push_back(model.gather(name));
  return found;
}

TEST(D9OffloadedSteps, RunOnTheCpuBesideTheirState) {
  for (const bool decoupled : {true, false}) {
    for (const bool keeps_low : {false, true}) {
      for (const int num_ranks : {1, 2, 3}) {
        run_local_ranks(num_ranks, [&](auto world) {
          ShardedOptions options;
          options.fsdp.mixed_precision = {.reduce_dtype = DType::bf16, .keep_low_precision_grads = keeps_low};
          const Trained plain = train(world->duplicate("plain"), options, decoupled, nullptr);
          std::vector<std::string> tasks;
          options.fsdp.cpu_offload = fsdp::CpuOffload::parameters;
          options.make_pool = [] { return std::make_unique<OtherPool>(); };
          options.make_stream = [&](std::string name, StreamMode) { return std::make_unique<OtherStream>(std::move(name), &tasks); };
          const Trained offloaded = train(std::move(world), options, decoupled, &tasks);
          EXPECT_EQ(offloaded.parameters, plain.parameters);
          EXPECT_EQ(offloaded.state_on_device, 0);
          EXPECT_EQ(offloaded.state_offloaded, plain.state_on_device);
          EXPECT_EQ(plain.state_offloaded, 0);
        });
      }
    }
  }
}

// A3, D8: offloaded_units on different grids of ranks: each is summed over its own shard axis, and replicas count once.
TEST(D8GridsOfRanks, EachUnitIsSummedOverItsOwnShardAxis) {
  run_local_ranks(4, [](auto world) {
    const std::unique_ptr<Pool> pool = make_cpu_pool();
    const std::unique_ptr<Kernels> kernels = make_cpu_kernels(*pool);
    Mesh whole(world->duplicate("whole"), MeshGeometry{4, 4, 1}), grid(std::move(world), MeshGeometry{4, 2, 2});
    fsdp::DeviceMesh first(whole, *pool, *kernels, fsdp::Streams::make(StreamMode::inlined));
    fsdp::DeviceMesh second(grid, first);
    test::Chain model(offloaded_units());
    fsdp::fully_shard(*model.parts()[0], second, {.strategy = fsdp::Strategy::hybrid_shard});
    fsdp::fully_shard(*model.parts()[1], first, {.strategy = fsdp::Strategy::no_shard});
    fsdp::fully_shard(model, first, {});
    fsdp::Root& root = fsdp::root_of(model);
    root.initialize(1);
    for (test::Weights* part : model.parts()) {
      for (auto& w : part->weights()) w.grad.assign(static_cast<std::size_t>(w.parameter->shape.numel()), 2.0F);
    }
    nn::Context context{.compute = first.compute(), .pool = *pool, .kernels = *kernels};
    nn::Record record;
    const nn::Tensors ys = model.forward(context, {}, &record);
    model.backward(context, std::move(record), ys);
    const auto norm = [&](double p) {
      const ClipCoefficient clip = clip_coefficient(root, 1, p);
      first.compute().synchronize();
      return *clip.norm.view().as<float>();
    };
    EXPECT_EQ(norm(1), 22.0F);  // 11 elements of 2
    EXPECT_FLOAT_EQ(static_cast<float>(norm(2)), std::sqrt(44.0F));
    EXPECT_EQ(norm(std::numeric_limits<double>::infinity()), 2.0F);
  });
}

}  // namespace
}  // namespace mica::optim
