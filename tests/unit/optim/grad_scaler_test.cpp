// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/grad_scaler.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/optim/clip_grad_norm.hpp"
#include "mica/tensor/loss_scale.hpp"

#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float value(ShardedWeights& model, ConstTensorView scalar) {
  model.device_mesh().compute().synchronize();
  return *scalar.as<float>();
}

/// Three scaled_units; the last has fewer elements than ranks.
std::vector<std::vector<test::WeightSpec>> scaled_units() {
  return {{{"a", Shape{5}, true, {1, 2, 3, 4, 5}}}, {{"b", Shape{7}, false, {1, 1, 1, 1, 1, 1, 1}}}, {{"c", Shape{1}, true, {3}}}};
}

/// Gradients as a backward that began with the scale would give them.
void set_scaled_grads(ShardedWeights& model, float scale, float salt = 0) {
  float next = 0.5F + salt;
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) {
      w.grad.clear();
      for (std::int64_t i = 0; i < w.parameter->shape.numel(); ++i) w.grad.push_back(scale * (next += 0.25F));
    }
  }
}

void scaled_step(ShardedWeights& model, GradScaler& scaler, Optimizer& optimizer) {
  model.pass();
  scaler.unscale();
  optimizer.step({.lr = 0.5, .skip = scaler.found_inf(), .skipped_steps = scaler.skipped_steps()});
  scaler.update();
  model.root().zero_grad();
}

struct ScalerMesh {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded;
};
class ScalerOnRanks : public ::testing::TestWithParam<ScalerMesh> {
 protected:
  [[nodiscard]] static ShardedOptions options() {
    ShardedOptions options{.shard_size = GetParam().shard_size, .unsharded = GetParam().unsharded};
    options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    return options;
  }
};

// D7. The overflow is in one element, of one rank's gradient, in each unit in turn.
TEST_P(ScalerOnRanks, D7_AnOverflowOnAnyShardSkipsTheStepOnAllRanksAndBacksOff) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (std::size_t unit = 0; unit < 3; ++unit) {
      for (int where = 0; where < GetParam().num_ranks; ++where) {
        run_local_ranks(GetParam().num_ranks, [&](auto world) {
          const int rank = world->rank();
          ShardedWeights model(std::move(world), scaled_units(), options());
          GradScaler scaler(model.root(), {.init_scale = 1024});
          const auto optimizer = make_adamw(model.root(), {});
          const Values a = model.gather("u0.a"), b = model.gather("u1.b"), c = model.gather("u2.c");
          set_scaled_grads(model, 1024);
          if (rank == where) model.weight(unit, 0).grad.back() = bad;
          scaled_step(model, scaler, *optimizer);
          EXPECT_EQ(value(model, scaler.scale()), 512);
          EXPECT_EQ(value(model, scaler.skipped_steps()), 1);
          EXPECT_EQ(model.gather("u0.a"), a);
          EXPECT_EQ(model.gather("u1.b"), b);
          EXPECT_EQ(model.gather("u2.c"), c);
          for (const StateShard& shard : optimizer->state()) {
            for (std::int64_t i = 0; i < shard.data.numel(); ++i) ASSERT_EQ(shard.data.as<float>()[i], 0);
          }
        });
      }
    }
  }
}

// D7. Powers of two change no bit: the scaled run is the plain one, without its skipped step.
TEST_P(ScalerOnRanks, D7_TakenStepsAreThoseOfARunWithoutScaling) {
  run_local_ranks(GetParam().num_ranks, [&](auto world) {
    ShardedWeights model(world->duplicate("twin"), scaled_units(), options());
    ShardedWeights plain(std::move(world), scaled_units(), options());
    GradScaler scaler(model.root(), {.init_scale = 256, .growth_interval = 2});
    const auto optimizer = make_adamw(model.root(), {}), plain_optimizer = make_adamw(plain.root(), {});
    const std::vector<float> scales{256, 256, 512, 256, 256, 512};  // grown before step 3, overflow in 3, grown before 6
    for (std::size_t step = 0; step < scales.size(); ++step) {
      ASSERT_EQ(value(model, scaler.scale()), scales[step]) << step;
      set_scaled_grads(model, scales[step], static_cast<float>(step));
      const bool overflows = step == 2;
      if (overflows) model.weight(1, 0).grad[3] = kInfinity;
      scaled_step(model, scaler, *optimizer);
      if (overflows) continue;
      set_scaled_grads(plain, 1, static_cast<float>(step));
      plain.pass();
      plain_optimizer->step({.lr = 0.5});
      plain.root().zero_grad();
    }
    for (const char* name : {"u0.a", "u1.b", "u2.c"}) EXPECT_EQ(model.gather(name), plain.gather(name)) << name;
    EXPECT_EQ(optimizer->num_steps(), 6);
    scaler.take_skipped_steps_off(*optimizer);
    EXPECT_EQ(optimizer->num_steps(), 5) << "the skipped step does not count in the bias correction";
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, ScalerOnRanks,
                         ::testing::Values(ScalerMesh{1, 1, {}}, ScalerMesh{2, 2, {}}, ScalerMesh{3, 3, {}}, ScalerMesh{4, 2, {}},
                                           ScalerMesh{2, 2, {1}}));

// D7
TEST(GradScaler, D7_IsOneAllReduceOfFourBytesOverTheWorldAlsoWithoutGradients) {
  run_local_ranks(4, [](auto world) {
    ShardedOptions options{.shard_size = 2};
    options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    ShardedWeights model(std::move(world), scaled_units(), options);
    GradScaler scaler(model.root());
    fsdp::DeviceMesh& device_mesh = model.device_mesh();
    const std::vector<ProcessGroup*> groups{&device_mesh.metrics_group(), &device_mesh.shard_norm_group(), &device_mesh.replicate_group(),
                                            &device_mesh.all_ranks_group()};
    for (ProcessGroup* group : groups) group->reset_counts();
    scaler.unscale();
    scaler.update();
    EXPECT_EQ(groups[0]->counts().of(Collective::all_reduce), 1);
    EXPECT_EQ(groups[0]->counts().bytes_of(Collective::all_reduce), 4);
    for (std::size_t i = 1; i < groups.size(); ++i) EXPECT_EQ(groups[i]->counts().of(Collective::all_reduce), 0);
    EXPECT_EQ(scaler.state(), (GradScaler::State{65536, 1}));
  });
}

TEST(GradScaler, UnscalesBeforeClipping) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), scaled_units());
    GradScaler scaler(model.root(), {.init_scale = 4096});
    set_scaled_grads(model, 4096);
    model.pass();
    scaler.unscale();
    const ClipCoefficient clip = clip_coefficient(model.root(), 1, std::numeric_limits<double>::infinity());
    EXPECT_EQ(value(model, clip.norm.view()), 0.5F + 13 * 0.25F);
    EXPECT_EQ(value(model, scaler.found_inf()), 0);
  });
}

TEST(GradScaler, ScalesWhatABackwardBeginsWith) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), scaled_units());
    const GradScaler scaler(model.root(), {.init_scale = 1024});
    EXPECT_EQ(value(model, scaler.scaled(0.25).view()), 256);
  });
}

TEST(GradScaler, GoesOnFromASavedState) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(world->duplicate("other"), scaled_units());
    GradScaler scaler(model.root(), {.init_scale = 64, .growth_interval = 3});
    const auto steps = [](GradScaler& s, int n) {
      for (int i = 0; i < n; ++i) {
        s.unscale();
        s.update();
      }
    };
    steps(scaler, 5);
    EXPECT_EQ(scaler.state(), (GradScaler::State{128, 2}));
    ShardedWeights again(std::move(world), scaled_units());
    GradScaler resumed(again.root(), {.init_scale = 64, .growth_interval = 3});
    resumed.set_state(scaler.state());
    steps(resumed, 1);
    EXPECT_EQ(resumed.state(), (GradScaler::State{256, 0}));
    resumed.set_state({0, 1});
    EXPECT_EQ(resumed.state(), (GradScaler::State{kLeastLossScale, 1})) << "of a version without a least scale";
    EXPECT_THROW(resumed.set_state({-1, 1}), CheckpointError);
    EXPECT_THROW(resumed.set_state({NAN, 1}), CheckpointError);
    EXPECT_THROW(resumed.set_state({1, -1}), CheckpointError);
  });
}

TEST(GradScaler, RefusesCallsOutOfOrder) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), scaled_units());
    GradScaler scaler(model.root());
    const auto message = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    EXPECT_THAT(message([&] { scaler.update(); }), ::testing::HasSubstr("without unscale()"));
    scaler.unscale();
    EXPECT_THAT(message([&] { scaler.unscale(); }), ::testing::HasSubstr("called twice in a step"));
    scaler.update();
    fsdp::BackwardPass pass(model.root());
    EXPECT_THAT(message([&] { scaler.unscale(); }), ::testing::HasSubstr("while the root is in backward"));
    pass.finish();
    using Options = GradScalerOptions;
    const auto refused = [&](const Options& options) { return message([&] { GradScaler(model.root(), options); }); };
    EXPECT_THAT(refused({.init_scale = 0}), ::testing::HasSubstr("optim.loss_scale is 0"));
    EXPECT_THAT(refused({.init_scale = 1e60}), ::testing::HasSubstr("optim.loss_scale is 1e+60"));
    EXPECT_THAT(refused({.growth_factor = 1}), ::testing::HasSubstr("growth_factor is 1"));
    EXPECT_THAT(refused({.backoff_factor = 1}), ::testing::HasSubstr("backoff_factor is 1"));
    EXPECT_THAT(refused({.growth_interval = 0}), ::testing::HasSubstr("optim.loss_scale_interval is 0"));
  });
}

// D7: gradients of ignored parameters (B3) are unscaled too, and an overflow in one of them on one rank skips the step
// on all.
TEST(GradScaler, D7_SeesIgnoredParameters) {
  run_local_ranks(3, [](auto world) {
    const int rank = world->rank();
    ShardedWeights model(std::move(world), scaled_units(), {.ignores_first = true});
    nn::Parameter& ignored = *model.weight(0, 0).parameter;
    GradScaler scaler(model.root(), {.init_scale = 4});
    const auto optimizer = make_sgd(model.root(), {});
    set_scaled_grads(model, 4);  // unscaled: 0.75, 1, ...
    scaled_step(model, scaler, *optimizer);
    model.device_mesh().compute().synchronize();
    EXPECT_EQ(ignored.data.as<float>()[0], 1 - 0.5F * 0.75F);
    EXPECT_EQ(ignored.data.as<float>()[4], 5 - 0.5F * 1.75F);
    ignored.grad_written = false;  // its holder's affair
    const Values b = model.gather("u1.b");
    if (rank == 1) model.weight(0, 0).grad[2] = kInfinity;
    scaled_step(model, scaler, *optimizer);
    EXPECT_EQ(scaler.state().scale, 2);
    EXPECT_EQ(ignored.data.as<float>()[0], 1 - 0.5F * 0.75F);
    EXPECT_EQ(model.gather("u1.b"), b);
  });
}

}  // namespace
}  // namespace mica::optim
