// SPDX-License-Identifier: Apache-2.0
// D16: the memory of a training run in counted_units of S = model bytes / shard ranks, by the pool's exact bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/optim/optimizer.hpp"

#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;

/// Five counted_units of 640 f32 without padding on 2 ranks: 12800 bytes of model.
constexpr std::int64_t kUnitBytes = 640 * 4;
constexpr std::int64_t kS = 5 * kUnitBytes / 2;

std::vector<std::vector<test::WeightSpec>> counted_units() {
  std::vector<std::vector<test::WeightSpec>> five(5, {{"w", Shape{640}, false, Values(640, 1)}});
  return five;
}
void set_small_grads(ShardedWeights& model) {
  for (test::Weights* part : model.model().parts()) part->weights()[0].grad.assign(640, 1);
}

/// Bytes once the device has done everything.
std::int64_t bytes(ShardedWeights& model) {
  model.device_mesh().compute().synchronize();
  return model.pool().stats().current;
}

class MemoryTable : public ::testing::TestWithParam<StreamMode> {};

// D16
TEST_P(MemoryTable, D16_SgdWithMomentum) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), counted_units(), {.mode = GetParam()});
    const auto optimizer = make_sgd(model.root(), {.momentum = 0.9});
    set_small_grads(model);
    EXPECT_EQ(bytes(model), kS) << "start";
    model.pass();
    EXPECT_EQ(bytes(model), 2 * kS) << "after the first backward";
    optimizer->step({.lr = 0.1});
    EXPECT_EQ(bytes(model), 3 * kS) << "after the first step";
    model.root().zero_grad();
    for (int step = 2; step <= 3; ++step) {
      EXPECT_EQ(bytes(model), 2 * kS) << "start of step " << step << ": momentum";
      model.pass();
      EXPECT_EQ(bytes(model), 3 * kS) << "after backward of step " << step;
      optimizer->step({.lr = 0.1});
      EXPECT_EQ(bytes(model), 3 * kS) << "after step " << step;
      model.root().zero_grad();
      EXPECT_EQ(bytes(model), 2 * kS) << "after zero_grad of step " << step;
    }
  });
}

// D16: Adam adds S.
TEST_P(MemoryTable, D16_Adam) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), counted_units(), {.mode = GetParam()});
    const auto optimizer = make_adamw(model.root(), {});
    set_small_grads(model);
    EXPECT_EQ(bytes(model), kS);
    for (int step = 1; step <= 2; ++step) {
      model.pass();
      EXPECT_EQ(bytes(model), (step == 1 ? 2 : 4) * kS);
      optimizer->step({.lr = 0.1});
      EXPECT_EQ(bytes(model), 4 * kS);
      model.root().zero_grad();
      EXPECT_EQ(bytes(model), 3 * kS);
    }
  });
}

// D16: no forward holds more than three counted_units beside the shards, whatever is prefetched; activations here are 4 bytes a
// unit's output.
TEST_P(MemoryTable, D16_PeakOfForward) {
  for (const bool prefetch : {false, true}) {
    for (const bool limits : {true, false}) {
      run_local_ranks(2, [&](auto world) {
        ShardedOptions options{.mode = GetParam()};
        options.fsdp.forward_prefetch = prefetch;
        options.fsdp.root = fsdp::RootOptions{.limit_all_gathers = limits};
        ShardedWeights model(std::move(world), counted_units(), options);
        set_small_grads(model);
        model.pass();  // the order is known
        model.root().zero_grad();
        const std::int64_t start = bytes(model);
        EXPECT_EQ(start, kS);
        model.pool().reset_peak();
        {
          nn::Record record;
          const nn::Tensors ys = model.model().forward(model.context(), {}, &record);
          model.device_mesh().compute().synchronize();
        }
        const std::int64_t peak = model.pool().stats().peak - start;
        const std::int64_t activations = 5 * 4;
        if (GetParam() == StreamMode::inlined) {
          // The last unit's with all outputs; with prefetch two counted_units and all but the last two outputs.
          EXPECT_EQ(peak, prefetch ? 2 * kUnitBytes + 4 * 4 : kUnitBytes + activations);
        } else {
          EXPECT_LE(peak, 3 * kUnitBytes + activations);
        }
        model.root().abandon_step();
      });
    }
  }
}

// D16: no_sync holds the whole unsharded gradient, beside a sharded one of an earlier synchronised backward.
TEST_P(MemoryTable, D16_NoSync) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), counted_units(), {.mode = GetParam()});
    set_small_grads(model);
    model.pass();
    EXPECT_EQ(bytes(model), 2 * kS);
    {
      const fsdp::NoSync no_sync(model.root());
      for (int i = 0; i < 2; ++i) {
        model.pass();
        EXPECT_EQ(bytes(model), 2 * kS + 2 * kS) << "the model's gradient is twice a shard of it";
      }
    }
    model.pass();
    EXPECT_EQ(bytes(model), 2 * kS);
  });
}

// D16: with offload the shards are elsewhere, but the unsharded gradient of no_sync is on the device.
TEST_P(MemoryTable, D16_NoSyncWithOffload) {
  run_local_ranks(2, [](auto world) {
    ShardedOptions options{.mode = GetParam()};
    options.fsdp.cpu_offload = fsdp::CpuOffload::parameters;
    ShardedWeights model(std::move(world), counted_units(), options);
    const auto offloaded = [&] { return model.device_mesh().offload().pool->stats().current; };
    set_small_grads(model);
    EXPECT_EQ(bytes(model), 0);
    EXPECT_EQ(offloaded(), kS);
    model.pass();
    EXPECT_EQ(bytes(model), 0);
    EXPECT_EQ(offloaded(), 2 * kS);
    {
      const fsdp::NoSync no_sync(model.root());
      model.pass();
      EXPECT_EQ(bytes(model), 2 * kS);
      EXPECT_EQ(offloaded(), 2 * kS);
    }
    model.pass();
    EXPECT_EQ(bytes(model), 0);
    const auto optimizer = make_sgd(model.root(), {.momentum = 0.9});
    optimizer->step({.lr = 0.1});
    EXPECT_EQ(bytes(model), 0) << "momentum is offloaded as well";
    EXPECT_EQ(offloaded(), 3 * kS);
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, MemoryTable, ::testing::Values(StreamMode::inlined, StreamMode::threaded));

}  // namespace
}  // namespace mica::optim
