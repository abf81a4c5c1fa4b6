// SPDX-License-Identifier: Apache-2.0
// Gradients that ranks write in turns ([Note: shared gradients]).
#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "mica/nn/embedding.hpp"
#include "mica/nn/head_loss.hpp"
#include "mica/nn/rms_norm.hpp"

#include "support/parity.hpp"
#include "testing/local_group.hpp"
#include "unit/fsdp/parity_list/rank_rig.hpp"

namespace mica::testing {
namespace {

using fsdp::Strategy;
using Model = ParityCase::Model;

constexpr LocalOptions kSharesMemory{.shares_memory = true};

std::vector<ParityRun> run_large(int world_size, const ParityCase& c) {
  std::vector<ParityRun> runs(static_cast<std::size_t>(world_size));
  run_local_ranks(
      world_size,
      [&](auto world) {
        const auto rank = static_cast<std::size_t>(world->rank());
        runs[rank] = run_sharded(std::move(world), c);
      },
      kSharesMemory);
  return runs;
}

class SharedGradientsParity : public ::testing::TestWithParam<int> {};

TEST_P(SharedGradientsParity, FollowOnePlainRank) {
  const int world_size = GetParam();
  constexpr auto kThreaded = StreamMode::threaded;
  std::vector<ParityCase> cases{
      {.model = Model::large_gpt2},
      {.model = Model::large_gpt2, .mode = kThreaded},
      {.model = Model::large_gpt2, .strategy = Strategy::shard_grad_op, .accumulation = 3, .mode = kThreaded},
      {.model = Model::large_gpt2, .accumulation = 2, .no_sync = true, .mode = kThreaded},
      {.model = Model::large_gpt2, .wrap = ParityCase::Wrap::none, .accumulation = 2},
      {.model = Model::large_gpt2, .wrap = ParityCase::Wrap::size, .checkpointed = true, .mode = kThreaded},
      {.model = Model::large_gpt2, .param_dtype = DType::bf16, .mode = kThreaded},
      {.model = Model::large_gpt2, .param_dtype = DType::bf16, .reduce_dtype = DType::bf16, .accumulation = 2, .no_sync = true},
      {.model = Model::large_llama},
      {.model = Model::large_llama, .wrap = ParityCase::Wrap::size, .accumulation = 2, .mode = kThreaded},
      {.model = Model::large_llama, .param_dtype = DType::bf16, .accumulation = 2, .mode = kThreaded},
  };
  if (world_size == 4) {
    cases.push_back({.model = Model::large_gpt2, .strategy = Strategy::hybrid_shard, .shard_size = 2, .mode = kThreaded});
    cases.push_back({.model = Model::large_llama, .strategy = Strategy::hybrid_shard_zero2, .shard_size = 2, .accumulation = 2});
  }
  for (ParityCase& c : cases) {
    c.shares_memory = true;
    const ParityRun plain = run_plain(world_size, c.accumulation, c.param_dtype, c.model);
    const std::vector<ParityRun> runs = run_large(world_size, c);
    for (const ParityRun& run : runs) expect_parity(plain, run, c);
    EXPECT_EQ(run_large(world_size, c), runs) << c.describe() << ": other bits in a second run";
    c.mode = c.mode == kThreaded ? StreamMode::inlined : kThreaded;
    EXPECT_EQ(run_large(world_size, c), runs) << c.describe() << ": other bits with the other streams";
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedGradientsParity, ::testing::Values(2, 3, 4));

// Abandoned at each of its collectives: what was written of a round does not show in the next.
TEST(SharedGradients, AnAbandonedStepLeavesNothing) {
  for (const int accumulation : {1, 2}) {
    const ParityCase c{.model = Model::large_gpt2, .accumulation = accumulation, .mode = StreamMode::threaded, .shares_memory = true};
    const std::vector<ParityRun> undisturbed = run_large(2, c);
    for (std::int64_t k = 0; k < 2 * accumulation; ++k) {
      run_local_ranks(
          2,
          [&](auto world) {
            FailurePlan plan(k);
            const ParityRun run = run_sharded(std::make_unique<FailingGroup>(std::move(world), plan), c, {.failures = &plan});
            EXPECT_EQ(run, undisturbed[0]) << "abandoned at collective " << k;
          },
          kSharesMemory);
    }
  }
}

}  // namespace
}  // namespace mica::testing

namespace mica::fsdp::testing {
namespace {

constexpr std::int64_t kRows = 4099, kWidth = 64;
constexpr LocalOptions kSharing{.shares_memory = true};

/// An embedding and a head, of one table or of two, with a norm between them: all in the root unit.
class Tables final : public nn::Module {
 public:
  explicit Tables(bool tied)
      : Module("tables"), in_(add_child<nn::Embedding>("in", kRows, kWidth)), norm_(add_child<nn::RmsNorm>("norm", kWidth)) {
    head_ = tied ? &add_child<nn::HeadLoss>("head", in_.weight()) : &add_child<nn::HeadLoss>("head", kRows, kWidth);
  }

 private:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    const Tensor targets = xs[1];
    xs.resize(1);
    nn::Tensors h = in_.forward(context, std::move(xs), nn::child_record(record));
    h = norm_.forward(context, std::move(h), nn::child_record(record));
    h.push_back(targets);
    return head_->forward(context, std::move(h), nn::child_record(record));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    dys = head_->backward(context, std::move(record.child(2)), std::move(dys));
    dys.resize(1);
    dys = norm_.backward(context, std::move(record.child(1)), std::move(dys));
    in_.backward(context, std::move(record.child(0)), std::move(dys));
    return nn::Tensors(2);
  }

  nn::Embedding& in_;
  nn::RmsNorm& norm_;
  nn::HeadLoss* head_;
};

/// One training pass of `rows` tokens.
void pass_tokens(nn::Module& model, RankRig& rig, std::int64_t rows) {
  nn::Tensors xs;
  for (int i = 0; i < 2; ++i) {
    Tensor ids = rig.context().make({1, rows}, DType::i32);
    rig.compute().submit("ids", {}, [view = ids.view(), rank = rig.rank(), i] {
      for (std::int64_t j = 0; j < view.numel(); ++j)
        view.as<std::int32_t>()[j] = static_cast<std::int32_t>((j * 977 + rank * 311 + i * 5) % kRows);
    });
    rig.compute().synchronize();
    xs.push_back(std::move(ids));
  }
  nn::Record record;
  const nn::Tensors ys = model.forward(rig.context(), std::move(xs), &record);
  const Tensor dloss = rig.context().make({1}, DType::f32);
  rig.kernels().fill(rig.compute(), dloss, 1.0);
  model.backward(rig.context(), std::move(record), {dloss});
  rig.compute().synchronize();
}

TEST(SharedGradients, WhichUnitsShare) {
  struct Case {
    const char* what;
    Options options;
    int shard_size;
    bool shares;
  };
  constexpr MixedPrecision kReducesBf16{.reduce_dtype = DType::bf16};
  const std::vector<Case> cases{
      {"full_shard", {}, 0, true},
      {"shard_grad_op", {.strategy = Strategy::shard_grad_op}, 0, true},
      {"bf16", {.mixed_precision = {.param_dtype = DType::bf16}}, 0, true},
      {"hybrid pairs", {.strategy = Strategy::hybrid_shard}, 2, true},
      {"16 bits inside the node", {.mixed_precision = kReducesBf16}, 0, true},
      {"16 bits between replicas", {.strategy = Strategy::hybrid_shard, .mixed_precision = kReducesBf16}, 2, false},
      {"low-precision gradients", {.mixed_precision = {.reduce_dtype = DType::bf16, .keep_low_precision_grads = true}}, 0, false},
      {"no_shard", {.strategy = Strategy::no_shard}, 0, false},
      {"parameter by parameter", {.sharding = Sharding::per_parameter}, 0, false},
      {"gradients offloaded", {.cpu_offload = CpuOffload::gradients}, 0, false},
      {"parameters offloaded", {.cpu_offload = CpuOffload::parameters}, 0, false},
      {"another reduction", {.reduction = &compressing_reduction(DType::bf16)}, 0, false},
      {"deterministic", {.root = RootOptions{.deterministic = true}}, 0, false},
  };
  for (const Case& c : cases) {
    for (const bool shares_memory : {true, false}) {
      run_local_ranks(4,
                      [&](auto world) {
                        RankRig rig(std::move(world), c.shard_size);
                        Tables model(true);
                        fully_shard(model, rig.device_mesh(), c.options);
                        root_of(model).initialize(1);
                        const UnitStorage& storage = *root_of(model).units()[0]->storage();
                        EXPECT_EQ(storage.shares_grads(), c.shares && shares_memory) << c.what;
                        pass_tokens(model, rig, 3);
                        EXPECT_EQ(rig.device_mesh().reduce_group().counts().of(Collective::reduce_scatter) > 0,
                                  !storage.shares_grads() && storage.shard_size() > 1 && !c.options.root)
                            << c.what;
                        rig.meet();
                      },
                      {.shares_memory = shares_memory});
    }
  }
}

// A table that a module uses which knows nothing of turns is not shared, and a small one is not worth it.
TEST(SharedGradients, AllUsersMustKnowTurns) {
  run_local_ranks(
      2,
      [](auto world) {
        RankRig rig(std::move(world));
        nn::Sequential linear;
        linear.add<nn::Linear>("0", kWidth, kRows);
        nn::Sequential small;
        small.add<nn::Embedding>("0", kRows - 4, kWidth);
        for (nn::Module* model : {&linear, &small}) {
          fully_shard(*model, rig.device_mesh(), {});
          root_of(*model).initialize(1);
          EXPECT_FALSE(root_of(*model).units()[0]->storage()->shares_grads());
        }
        rig.meet();
      },
      kSharing);
}

// One array for the group: each rank holds its part of it, and whole only what is written alone (the norm).
TEST(SharedGradients, AreThereOnce) {
  for (const bool tied : {true, false}) {
    run_local_ranks(
        3,
        [tied](auto world) {
          RankRig rig(std::move(world));
          Tables model(tied);
          fully_shard(model, rig.device_mesh(), {});
          root_of(model).initialize(1);
          const UnitStorage& storage = *root_of(model).units()[0]->storage();
          const std::int64_t part = 4 * storage.layout().shard_numel();
          EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::sharded_grad), 0) << "before the first training forward";
          for (int step = 0; step < 3; ++step) {
            for (int micro_batch = 1; micro_batch <= 2; ++micro_batch) {
              pass_tokens(model, rig, 5);
              EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::sharded_grad), micro_batch * part)
                  << "the second one is added to the first";
            }
            root_of(model).zero_grad();
            EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::sharded_grad), part);
          }
          EXPECT_EQ(rig.pool().stats().peak_of(MemoryRole::unsharded_grad), 4 * kWidth);
          EXPECT_EQ(rig.device_mesh().reduce_group().counts().of(Collective::reduce_scatter), 0);
          rig.meet();
        },
        kSharing);
  }
}

// Ranks may have more or fewer tokens, and more or fewer chunks of logits: nobody waits for a turn that never comes.
TEST(SharedGradients, RanksMayHaveDifferentlyManyTokens) {
  for (const bool tied : {true, false}) {
    std::array<std::vector<float>, 2> grads;  // by whether memory is shared
    for (const bool shares_memory : {false, true}) {
      run_local_ranks(3,
                      [&](auto world) {
                        RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
                        Tables model(tied);
                        fully_shard(model, rig.device_mesh(), {});
                        root_of(model).initialize(1);
                        for (int step = 0; step < 2; ++step) {
                          root_of(model).zero_grad();
                          pass_tokens(model, rig, step == 0 ? 7 : rig.rank() == 0 ? 1 : rig.rank() == 1 ? 5 : 6000);
                        }
                        const UnitStorage& storage = *root_of(model).units()[0]->storage();
                        const Tensor whole = rig.context().make({3 * storage.layout().shard_numel()}, DType::f32);
                        rig.mesh().world().all_gather(rig.compute(), "test", storage.sharded_grad(), whole);
                        if (rig.rank() == 0) grads.at(shares_memory ? 1 : 0) = rig.values(whole);
                        rig.meet();
                      },
                      {.shares_memory = shares_memory});
    }
    ASSERT_EQ(grads[0].size(), grads[1].size());
    float most = 0, off = 0;
    for (std::size_t i = 0; i < grads[0].size(); ++i) {
      most = std::max(most, std::abs(grads[0][i]));
      off = std::max(off, std::abs(grads[0][i] - grads[1][i]));
    }
    EXPECT_GT(most, 0);
    EXPECT_LE(off, most * 0x1p-20F) << (tied ? "tied" : "untied");
  }
}

// Parameters that stay unsharded let a rank go on to the next micro-batch at once: it writes the part of a late one only when that one has
// copied it away.
TEST(SharedGradients, APartIsWrittenBehindItsCopy) {
  std::array<std::vector<float>, 2> grads;  // by whether rank 1 is late
  for (const bool is_late : {false, true}) {
    run_local_ranks(
        2,
        [&](auto world) {
          RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
          Tables model(true);
          fully_shard(model, rig.device_mesh(), {.strategy = Strategy::shard_optim});
          root_of(model).initialize(1);
          pass_tokens(model, rig, 5);
          if (is_late && rig.rank() == 1)
            rig.compute().submit("late", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
          pass_tokens(model, rig, 7);
          const UnitStorage& storage = *root_of(model).units()[0]->storage();
          if (rig.rank() == 1) grads.at(is_late ? 1 : 0) = rig.values(storage.sharded_grad());
          rig.meet();
        },
        kSharing);
  }
  EXPECT_EQ(grads[0], grads[1]);
}

// Ranks that had come differently far when a step was given up go on together in a rebuilt mesh.
TEST(SharedGradients, ARebuiltMeshCountsAnew) {
  std::array<std::vector<float>, 2> grads;  // by whether the mesh is rebuilt
  for (const bool is_rebuilt : {false, true}) {
    run_local_ranks(
        2,
        [&](auto world) {
          const auto meet = world->duplicate("meet");
          auto again = world->duplicate("again");
          RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
          Tables model(true);
          fully_shard(model, rig.device_mesh(), {});
          root_of(model).initialize(1);
          pass_tokens(model, rig, 5);
          root_of(model).zero_grad();
          if (is_rebuilt) {
            UnitStorage& storage = *root_of(model).units()[0]->storage();
            RateLimiter limiter(1, true);
            for (int i = 0; rig.rank() == 1 && i < 3; ++i) {  // nobody else comes
              storage.prepare_grads(limiter);
              storage.zero_grad();
            }
            rig.device_mesh().abort("this step is given up");
            root_of(model).abandon_step();
            const auto stream = make_cpu_stream("test", StreamMode::inlined);
            meet->barrier(*stream, "all have given it up");
            rig.device_mesh().rebuild(std::move(again), {.world_size = 2, .shard_size = 2, .replicas = 1});
          }
          for (int step = 0; step < 2; ++step) {
            pass_tokens(model, rig, 7);
            const std::vector<float> mine = rig.values(root_of(model).units()[0]->storage()->sharded_grad());
            if (rig.rank() == 1) grads.at(is_rebuilt ? 1 : 0) = mine;
            root_of(model).zero_grad();
          }
          const auto stream = make_cpu_stream("test", StreamMode::inlined);
          meet->barrier(*stream, "end");
        },
        kSharing);
  }
  EXPECT_EQ(grads[0], grads[1]);
}

// A unit that is mostly something else than tables is reduced as ever.
TEST(SharedGradients, TablesMustBeHalfOfTheUnit) {
  for (const bool are_half : {true, false}) {
    run_local_ranks(
        2,
        [are_half](auto world) {
          RankRig rig(std::move(world));
          nn::Sequential model;
          model.add<nn::Embedding>("0", kRows, kWidth);
          model.add<nn::Linear>("1", kWidth, kRows + (are_half ? -100 : 1));
          fully_shard(model, rig.device_mesh(), {});
          root_of(model).initialize(1);
          EXPECT_EQ(root_of(model).units()[0]->storage()->shares_grads(), are_half);
          rig.meet();
        },
        kSharing);
  }
}

// A table whose backward has not run has a gradient of zeros.
TEST(SharedGradients, WhatNobodyWroteIsZero) {
  run_local_ranks(
      2,
      [](auto world) {
        RankRig rig(std::move(world));
        Tables model(false);
        fully_shard(model, rig.device_mesh(), {});
        root_of(model).initialize(1);
        UnitStorage& storage = *root_of(model).units()[0]->storage();
        pass_tokens(model, rig, 5);
        root_of(model).zero_grad();
        RateLimiter limiter(1, true);
        storage.prepare_grads(limiter);
        storage.reduce_grads(limiter);
        for (Stream* stream : rig.device_mesh().streams().all()) stream->synchronize();
        for (const float value : rig.values(storage.sharded_grad())) ASSERT_EQ(value, 0);
        storage.zero_grad();
        rig.meet();
      },
      kSharing);
}

}  // namespace
}  // namespace mica::fsdp::testing
