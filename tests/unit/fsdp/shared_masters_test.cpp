// SPDX-License-Identifier: Apache-2.0
// Masters, or casts of them, that lie side by side in memory that ranks share ([Note: shared masters], [Note: shared casts]). That training
// gives the bits of all-gathers: parity_test, differential_test; that a step can be given up: abandon_test,
// tests/unit/optim/fewer_ranks_test.
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "mica/fsdp/state_dict.hpp"
#include "mica/fsdp/summon.hpp"
#include "mica/optim/optimizer_in_backward.hpp"

#include "unit/fsdp/parity_list/rank_rig.hpp"

namespace mica::fsdp::testing {
namespace {

using namespace std::chrono_literals;

constexpr LocalOptions kShares{.shares_memory = true};

/// Linear(3 -> 5) in a unit "0", Linear(5 -> 2) in the root unit.
struct TwoSharedUnits {
  TwoSharedUnits(RankRig& rig, const Options& options) : model(make_chain({3, 5, 2})) {
    fully_shard(*model->children()[0].module, rig.device_mesh(), options);
    fully_shard(*model, rig.device_mesh(), options);
    root().initialize(1);
  }
  Root& root() { return root_of(*model); }
  Unit& inner() { return *root().units()[1]; }
  void train_pass(RankRig& rig) {
    Tensor x = rig.context().make({1, 3}, DType::f32);
    rig.kernels().fill(rig.compute(), x, 1.0);
    nn::Record record;
    const nn::Tensors ys = model->forward(rig.context(), nn::list_of(std::move(x)), &record);
    model->backward(rig.context(), std::move(record), ys);
  }
  std::unique_ptr<nn::Sequential> model;
};

TEST(SharedMasters, WhichUnitsShare) {
  enum class Shared : std::uint8_t { nothing, masters, casts, casts_of_root };
  struct Case {
    const char* what;
    Options options;
    int shard_size;
    Shared shared;
  };
  constexpr MixedPrecision kBf16{.param_dtype = DType::bf16};
  const std::vector<Case> cases{
      {"full_shard", {}, 0, Shared::masters},
      {"shard_grad_op", {.strategy = Strategy::shard_grad_op}, 0, Shared::masters},
      {"shard_optim", {.strategy = Strategy::shard_optim}, 0, Shared::masters},
      {"hybrid pairs", {.strategy = Strategy::hybrid_shard}, 2, Shared::masters},
      {"gradients offloaded", {.cpu_offload = CpuOffload::gradients}, 0, Shared::masters},
      {"low-precision gradients", {.mixed_precision = {.reduce_dtype = DType::bf16}}, 0, Shared::masters},
      {"no_shard", {.strategy = Strategy::no_shard}, 0, Shared::nothing},
      {"one shard rank", {.strategy = Strategy::hybrid_shard}, 1, Shared::nothing},
      {"parameter by parameter", {.sharding = Sharding::per_parameter}, 0, Shared::nothing},
      {"parameters offloaded", {.cpu_offload = CpuOffload::parameters}, 0, Shared::nothing},
      {"among neighbours after forward", {.reshard_after_forward_ranks = 2}, 0, Shared::nothing},
      {"bf16", {.mixed_precision = kBf16}, 0, Shared::casts_of_root},
      {"bf16, hybrid pairs", {.strategy = Strategy::hybrid_shard, .mixed_precision = kBf16}, 2, Shared::casts_of_root},
      {"bf16, among neighbours", {.mixed_precision = kBf16, .reshard_after_forward_ranks = 2}, 0, Shared::casts_of_root},
      {"bf16, shard_grad_op", {.strategy = Strategy::shard_grad_op, .mixed_precision = kBf16}, 0, Shared::casts},
      {"bf16, shard_optim", {.strategy = Strategy::shard_optim, .mixed_precision = kBf16}, 0, Shared::casts},
      {"bf16, hybrid zero2", {.strategy = Strategy::hybrid_shard_zero2, .mixed_precision = kBf16}, 2, Shared::casts},
      {"bf16, no_shard", {.strategy = Strategy::no_shard, .mixed_precision = kBf16}, 0, Shared::nothing},
      {"bf16, parameter by parameter", {.mixed_precision = kBf16, .sharding = Sharding::per_parameter}, 0, Shared::nothing},
      {"bf16, offloaded", {.mixed_precision = kBf16, .cpu_offload = CpuOffload::parameters}, 0, Shared::nothing},
  };
  for (const Case& c : cases) {
    for (const bool shares_memory : {true, false}) {
      run_local_ranks(4,
                      [&](auto world) {
                        RankRig rig(std::move(world), c.shard_size);
                        TwoSharedUnits two(rig, c.options);
                        const Shared shared = shares_memory ? c.shared : Shared::nothing;
                        for (const Unit* unit : two.root().units()) {
                          const UnitStorage& storage = *unit->storage();
                          EXPECT_EQ(storage.shares_masters(), shared == Shared::masters) << c.what << ", unit " << unit->name();
                          const bool casts = shared == Shared::casts || (shared == Shared::casts_of_root && unit != &two.inner());
                          EXPECT_EQ(storage.shares_casts(), casts) << c.what << ", unit " << unit->name();
                          const std::int64_t element_bytes = shared == Shared::masters ? 4 : casts ? 2 : 0;
                          EXPECT_EQ(storage.shared_bytes(), element_bytes * storage.layout().shard_numel())
                              << c.what << ", unit " << unit->name();
                        }
                        two.train_pass(rig);
                        // Both units in forward, and in backward the one that was resharded.
                        const std::int64_t unshards = reshards_after_forward(c.options.strategy) ? 3 : 2;
                        EXPECT_EQ(rig.device_mesh().unshard_group().counts().of(Collective::wait_for_written),
                                  shared == Shared::nothing         ? 0
                                  : shared == Shared::casts_of_root ? 1
                                                                    : unshards)
                            << c.what;
                      },
                      {.shares_memory = shares_memory});
    }
  }
}

TEST(SharedMasters, WhatIsUnshardedIsTheMastersThemselves) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run_local_ranks(
        3,
        [mode](auto world) {
          RankRig rig(std::move(world), 0, {}, mode);
          TwoSharedUnits two(rig, {});
          rig.number_masters(*two.model);
          const UnitStorage& storage = *two.inner().storage();
          const std::int64_t numel = storage.layout().shard_numel();
          EXPECT_EQ(rig.pool().stats().current, 4 * (numel + two.root().units()[0]->storage()->layout().shard_numel()))
              << "each rank counts its own part";
          rig.pool().reset_peak();
          const std::int64_t before = rig.pool().stats().peak;
          two.inner().unshard().wait();
          rig.compute().synchronize();
          const nn::Parameter& weight = *storage.parameters()[0].parameter;
          EXPECT_EQ(weight.data.as<float>(), storage.master().as<float>() - rig.rank() * numel);
          EXPECT_EQ(rig.values(weight.data), numbered(0, 15));
          EXPECT_EQ(rig.values(storage.parameters()[1].parameter->data), numbered(1, 5));
          EXPECT_EQ(rig.pool().stats().peak, before);
          EXPECT_THROW(static_cast<void>(storage.write_master()), Error);
          EXPECT_THROW(static_cast<void>(storage.write_master(rig.compute())), Error);
          two.inner().reshard();
          EXPECT_FALSE(weight.data);
          EXPECT_EQ(storage.write_master().data, storage.master().data);
          rig.meet();
        },
        kShares);
  }
}

TEST(SharedCasts, WhatIsUnshardedIsTheRanksCasts) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run_local_ranks(
        3,
        [mode](auto world) {
          RankRig rig(std::move(world), 0, {}, mode);
          TwoSharedUnits two(rig, {.strategy = Strategy::shard_grad_op, .mixed_precision = {.param_dtype = DType::bf16}});
          rig.number_masters(*two.model);
          const UnitStorage& storage = *two.inner().storage();
          const std::int64_t numel = storage.layout().shard_numel() + two.root().units()[0]->storage()->layout().shard_numel();
          EXPECT_EQ(rig.pool().stats().current, (4 + 2) * numel) << "each rank counts its own master and its own part of the casts";
          rig.pool().reset_peak();
          for (int round = 0; round < 3; ++round) {
            two.inner().unshard().wait();
            const nn::Parameter& weight = *storage.parameters()[0].parameter;
            EXPECT_EQ(weight.data.dtype, DType::bf16);
            EXPECT_EQ(rig.values(weight.data), numbered(0, 15));
            std::vector<float> rounded;
            for (const float value : numbered(1, 5)) rounded.push_back(static_cast<float>(bf16(value)));
            EXPECT_EQ(rig.values(storage.parameters()[1].parameter->data), rounded);
            two.inner().reshard();
          }
          EXPECT_EQ(rig.pool().stats().peak, (4 + 2) * numel);
          rig.meet();
        },
        kShares);
  }
}

// Rank 1 reads late, and so does rank 0 itself; rank 0 casts anew only behind both.
TEST(SharedCasts, ACastWaitsForLateReaders) {
  for (const int late : {0, 1}) {
    std::atomic<bool> has_read = false;
    run_local_ranks(
        2,
        [&](auto world) {
          RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
          TwoSharedUnits two(rig, {.strategy = Strategy::shard_grad_op, .mixed_precision = {.param_dtype = DType::bf16}});
          two.inner().unshard().wait();
          if (rig.rank() == late) {
            rig.compute().submit("read", {}, [&] {
              std::this_thread::sleep_for(50ms);
              has_read = true;
            });
          }
          two.inner().reshard();
          RateLimiter limiter(1, true);
          two.inner().storage()->unshard(limiter);
          rig.device_mesh().streams().unshard->submit("cast anew", {}, [&] { EXPECT_TRUE(has_read) << "rank " << late << " is late"; });
          two.inner().reshard();
          rig.meet();
        },
        kShares);
  }
}

// Rank 1 reads late; rank 0 writes its master, from the host or on a stream, only behind that.
TEST(SharedMasters, AWriterWaitsForALateReader) {
  for (const bool on_host : {true, false}) {
    std::atomic<bool> has_read = false;
    run_local_ranks(
        2,
        [&](auto world) {
          RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
          TwoSharedUnits two(rig, {});
          const UnitStorage& storage = *two.inner().storage();
          static_cast<void>(storage.write_master());  // nothing was read yet: nobody is waited for
          two.inner().unshard().wait();
          if (rig.rank() == 1) {
            rig.compute().submit("read", {}, [&] {
              std::this_thread::sleep_for(50ms);
              has_read = true;
            });
          }
          two.inner().reshard();
          if (rig.rank() == 0 && on_host) {
            static_cast<void>(storage.write_master());
            EXPECT_TRUE(has_read);
          } else if (rig.rank() == 0) {
            static_cast<void>(storage.write_master(rig.compute()));
            rig.compute().submit("write", {}, [&] { EXPECT_TRUE(has_read); });
          }
          rig.meet();
        },
        kShares);
  }
}

// What a failed stream had skipped, the release of what was unsharded, holds nobody up.
TEST(SharedMasters, MastersAreWrittenBehindAStepThatWasGivenUp) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run_local_ranks(
        2,
        [mode](auto world) {
          RankRig rig(std::move(world), 0, {}, mode);
          TwoSharedUnits two(rig, {});
          two.train_pass(rig);
          two.root().zero_grad();
          two.inner().unshard().wait();
          rig.compute().submit("inject", {}, [] { throw Error("injected on all ranks"); });
          two.inner().reshard();
          two.root().abandon_step();
          rig.number_masters(*two.model);
          two.inner().unshard().wait();
          EXPECT_EQ(rig.values(two.inner().storage()->parameters()[0].parameter->data), numbered(0, 15));
          two.inner().reshard();
          rig.meet();
        },
        kShares);
  }
}

// What a step waits for: once for each unit that is unsharded, and once for each unit that is written.
TEST(SharedMasters, AStepWaitsOnceForEachUnit) {
  for (const bool in_backward : {false, true}) {
    run_local_ranks(
        2,
        [&](auto world) {
          RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
          TwoSharedUnits two(rig, {.root = RootOptions{.use_orig_params = true}});
          const auto optimizer = optim::make_adamw(two.root(), {});
          std::optional<optim::OptimizerInBackward> of_units;
          if (in_backward) of_units.emplace(*optimizer);
          DeviceMesh& device_mesh = rig.device_mesh();
          for (int step = 1; step <= 3; ++step) {
            if (of_units) of_units->begin_step(0.1);
            two.train_pass(rig);
            if (!of_units) optimizer->step({.lr = 0.1});
            two.root().zero_grad();
            const auto released = [&](const ProcessGroup& group) { return group.counts().of(Collective::wait_for_released); };
            EXPECT_EQ(device_mesh.unshard_group().counts().of(Collective::wait_for_written), 3 * step)
                << "two units forward, one again backward";
            EXPECT_EQ(device_mesh.unshard_group().counts().of(Collective::all_gather), 0);
            EXPECT_EQ(released(device_mesh.reduce_group()), in_backward ? 2 * step : 0) << "on the stream that writes";
            EXPECT_EQ(released(device_mesh.shard_norm_group()), in_backward ? 0 : 2 * step);
          }
          rig.meet();
        },
        kShares);
  }
}

// Otherwise a report of a hang would name calls of other ranks. Rank 0 holds nothing of the bias.
TEST(SharedMasters, RanksWaitEquallyOftenWhereAStateDictIsLoaded) {
  std::array<std::int64_t, 2> waits{};
  run_local_ranks(
      2,
      [&](auto world) {
        RankRig rig(std::move(world));
        nn::Sequential model;
        model.add<nn::Linear>("0", 3, 5);
        fully_shard(model, rig.device_mesh(), {});
        root_of(model).initialize(1);
        const StateDict dict = state_dict(model);
        nn::Record record;
        Tensor x = rig.context().make({1, 3}, DType::f32);
        rig.kernels().fill(rig.compute(), x, 1.0);
        const nn::Tensors ys = model.forward(rig.context(), nn::list_of(std::move(x)), &record);
        model.backward(rig.context(), std::move(record), ys);
        load_state_dict(model, dict);
        waits.at(static_cast<std::size_t>(rig.rank())) = rig.device_mesh().shard_norm_group().counts().of(Collective::wait_for_released);
        rig.meet();
      },
      kShares);
  EXPECT_GT(waits[0], 0);
  EXPECT_EQ(waits[0], waits[1]);
}

TEST(SharedMasters, InitialisingAgainKeepsTheMemory) {
  run_local_ranks(
      3,
      [](auto world) {
        RankRig rig(std::move(world));
        TwoSharedUnits two(rig, {});
        const UnitStorage& storage = *two.inner().storage();
        const void* const memory = storage.master().data;
        const std::vector<float> initial = rig.values(storage.master());
        two.train_pass(rig);
        rig.number_masters(*two.model);
        const std::int64_t bytes = rig.pool().stats().current_of(MemoryRole::sharded_param);
        two.root().initialize(1);
        EXPECT_EQ(storage.master().data, memory);
        EXPECT_EQ(rig.values(storage.master()), initial);
        EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::sharded_param), bytes);
        rig.meet();
      },
      kShares);
}

TEST(SharedMasters, WhatIsSummonedIsWrittenBack) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run_local_ranks(
        3,
        [mode](auto world) {
          RankRig rig(std::move(world), 0, {}, mode);
          TwoSharedUnits two(rig, {});
          for (int round = 0; round < 3; ++round) {
            two.train_pass(rig);
            two.root().zero_grad();
            {
              SummonFullParams full(*two.model);
              std::fill_n(two.inner().storage()->parameters()[0].parameter->data.as<float>(), 15, static_cast<float>(round));
            }
            two.inner().unshard().wait();
            EXPECT_EQ(rig.values(two.inner().storage()->parameters()[0].parameter->data),
                      std::vector<float>(15, static_cast<float>(round)));
            two.inner().reshard();
          }
          rig.meet();
        },
        kShares);
  }
}

// A local state dict shows the shard itself: whoever has made it may write it at once.
TEST(SharedMasters, ALocalStateDictIsMadeBehindTheReaders) {
  std::atomic<bool> has_read = false;
  run_local_ranks(
      2,
      [&](auto world) {
        RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
        TwoSharedUnits two(rig, {});
        set_state_dict_settings(*two.model, StateDictSettings::of(StateDictKind::local));
        two.inner().unshard().wait();
        if (rig.rank() == 1) {
          rig.compute().submit("read", {}, [&] {
            std::this_thread::sleep_for(50ms);
            has_read = true;
          });
        }
        two.inner().reshard();
        const StateDict dict = state_dict(*two.model);
        EXPECT_TRUE(has_read);
        EXPECT_EQ(dict.at("0.flat_param").view().data, two.inner().storage()->master().data);
        rig.meet();
      },
      kShares);
}

}  // namespace
}  // namespace mica::fsdp::testing
