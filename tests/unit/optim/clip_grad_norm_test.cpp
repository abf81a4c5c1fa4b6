// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/clip_grad_norm.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/fsdp/deterministic.hpp"

#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;

constexpr double kInf = std::numeric_limits<double>::infinity();

float value(ShardedWeights& model, const Tensor& scalar) {
  model.device_mesh().compute().synchronize();
  return *scalar.view().as<float>();
}

/// Three units: 2 + 1 elements, 3 elements, 1 element. Gradients whose norms can be done in the head:
/// sum |g| = 3+4+2 + 1+2+4 + 8 = 24, sum g^2 = 9+16+4 + 1+4+16 + 64 = 114, sum |g|^3 = 27+64+8 + 1+8+64 + 512 = 684.
std::vector<std::vector<test::WeightSpec>> units() { return {{{"a", Shape{2}}, {"b", Shape{1}}}, {{"c", Shape{3}}}, {{"d", Shape{1}}}}; }
void set_grads_to_clip(ShardedWeights& model) {
  model.weight(0, 0).grad = {3, -4};
  model.weight(0, 1).grad = {2};
  model.weight(1, 0).grad = {-1, 2, 4};
  model.weight(2, 0).grad = {-8};
}

struct Mesh2D {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded;  // units
};

class Norms : public ::testing::TestWithParam<Mesh2D> {};

// D8. The same numbers whatever is sharded, replicated, ignored (B3) or neither: every element counts once.
TEST_P(Norms, D8_CountEveryElementOnce) {
  const Mesh2D& mesh = GetParam();
  for (const auto& [mode, ignores_first] :
       {std::pair{StreamMode::inlined, false}, {StreamMode::threaded, false}, {StreamMode::inlined, true}, {StreamMode::threaded, true}}) {
    run_local_ranks(mesh.num_ranks, [&, mode = mode, ignores_first = ignores_first](auto world) {
      ShardedOptions options{.mode = mode, .shard_size = mesh.shard_size, .unsharded = mesh.unsharded};
      options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
      options.ignores_first = ignores_first;
      ShardedWeights model(std::move(world), units(), options);
      ASSERT_EQ(model.root().ignored_parameters().size(), ignores_first ? 1U : 0U);
      set_grads_to_clip(model);
      model.pass();
      const auto norm = [&](double p) { return value(model, clip_grad_norm(model.root(), kInf, p)); };
      EXPECT_NEAR(norm(1), 24, 24e-6);
      EXPECT_NEAR(norm(2), std::sqrt(114.0), 11e-6);
      EXPECT_NEAR(norm(3), std::cbrt(684.0), 9e-6);
      EXPECT_EQ(norm(kInf), 8);
      const ClipCoefficient clip = clip_coefficient(model.root(), 1);
      EXPECT_NEAR(value(model, clip.coefficient), 1 / (std::sqrt(114.0) + 1e-6), 1e-7);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Norms,
                         ::testing::Values(Mesh2D{1, 1, {}}, Mesh2D{2, 2, {}}, Mesh2D{3, 3, {}}, Mesh2D{4, 4, {}}, Mesh2D{2, 1, {}},
                                           Mesh2D{4, 2, {}}, Mesh2D{2, 2, {2}}, Mesh2D{4, 4, {0, 2}}, Mesh2D{4, 2, {1}},
                                           Mesh2D{4, 2, {0, 1, 2}}));

// D8: however the gradients are cut and wherever they lie.
TEST(ClipGradNorm, D8_DoesNotDependOnTheSharding) {
  std::vector<fsdp::Options> all(4);
  all[0].sharding = fsdp::Sharding::per_parameter;
  all[1].strategy = fsdp::Strategy::shard_optim;
  all[2].cpu_offload = fsdp::CpuOffload::gradients;
  all[3].cpu_offload = fsdp::CpuOffload::parameters;
  for (const fsdp::Options& each : all) {
    for (const int num_ranks : {1, 2, 3}) {
      run_local_ranks(num_ranks, [&](auto world) {
        ShardedOptions options;
        options.fsdp = each;
        ShardedWeights model(std::move(world), units(), options);
        set_grads_to_clip(model);
        model.pass();
        EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 1)), 24, 24e-6);
        EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 2)), std::sqrt(114.0), 11e-6);
        EXPECT_EQ(value(model, clip_grad_norm(model.root(), kInf, kInf)), 8);
      });
    }
  }
}

// D8
TEST(ClipGradNorm, D8_IsOneAllReduceOfFourBytesOverTheShardAxis) {
  run_local_ranks(4, [](auto world) {
    ShardedOptions options{.shard_size = 2};
    options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    ShardedWeights model(std::move(world), units(), options);
    set_grads_to_clip(model);
    model.pass();
    fsdp::DeviceMesh& device_mesh = model.device_mesh();
    const std::vector<ProcessGroup*> groups{&device_mesh.shard_norm_group(), &device_mesh.metrics_group(), &device_mesh.replicate_group(),
                                            &device_mesh.reduce_group(),     &device_mesh.unshard_group(), &device_mesh.all_ranks_group()};
    for (ProcessGroup* group : groups) group->reset_counts();
    clip_grad_norm(model.root(), 1);
    EXPECT_EQ(groups[0]->counts().of(Collective::all_reduce), 1);
    EXPECT_EQ(groups[0]->counts().bytes_of(Collective::all_reduce), 4);
    for (std::size_t i = 1; i < groups.size(); ++i) {
      EXPECT_EQ(groups[i]->counts().of(Collective::all_reduce), 0) << groups[i]->name();
    }
  });
}

// D8
TEST(ClipGradNorm, D8_WithoutGradientsItIsZeroAndTheRanksStillMeet) {
  run_local_ranks(3, [](auto world) {
    ShardedWeights model(std::move(world), units());
    const ClipCoefficient clip = clip_coefficient(model.root(), 0.5);
    EXPECT_EQ(value(model, clip.norm), 0);
    EXPECT_EQ(value(model, clip.coefficient), 1);
    EXPECT_EQ(model.device_mesh().shard_norm_group().counts().of(Collective::all_reduce), 1);
    // Some units without gradients: 3+4+2 only.
    set_grads_to_clip(model);
    model.pass({true, false, false});
    EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 1)), 9, 9e-6);
  });
}

// D8, F3: and by the exact sum of a deterministic run.
TEST_P(Norms, D8_F3_CountIgnoredParametersOnceInTheExactSum) {
  const Mesh2D& mesh = GetParam();
  run_local_ranks(mesh.num_ranks, [&](auto world) {
    ShardedOptions options{.shard_size = mesh.shard_size, .unsharded = mesh.unsharded, .ignores_first = true};
    options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    options.fsdp.root = fsdp::RootOptions{.deterministic = true};
    ShardedWeights model(std::move(world), units(), options);
    set_grads_to_clip(model);
    model.pass();
    fsdp::average_grads(model.root(), mesh.num_ranks);
    EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 1)), 24, 24e-6);
  });
}

// D8: an ignored parameter counts while it has a gradient, and clipping multiplies that.
TEST(ClipGradNorm, D8_TakesIgnoredParametersThatHaveAGradient) {
  run_local_ranks(2, [](auto world) {
    ShardedOptions options{.ignores_first = true};
    ShardedWeights model(std::move(world), units(), options);
    nn::Parameter& ignored = *model.weight(0, 0).parameter;
    set_grads_to_clip(model);
    model.pass({false, true, true});  // 1+2+4 + 8
    EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 1)), 15, 15e-6);
    model.root().zero_grad();
    model.pass();
    clip_grad_norm(model.root(), 3, 1);  // 3 / 24
    model.device_mesh().compute().synchronize();
    EXPECT_NEAR(ignored.grad.as<float>()[0], 0.375, 1e-6);
    EXPECT_NEAR(ignored.grad.as<float>()[1], -0.5, 1e-6);
    EXPECT_NEAR(value(model, clip_coefficient(model.root(), 3, 1).norm), 3, 1e-5);
    ignored.requires_grad = false;
    EXPECT_NEAR(value(model, clip_coefficient(model.root(), 3, 1).norm), 3 - 0.875, 1e-5);
  });
}

// D8: PyTorch's clip_grad_norm_().
TEST(ClipGradNorm, D8_ClipsInPlaceAndReturnsTheNorm) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), units());
    set_grads_to_clip(model);
    model.pass();
    EXPECT_NEAR(value(model, clip_grad_norm(model.root(), 3, 1)), 24, 24e-6);  // 3 / 24
    const Values found = model.gather_grad("u1.c");
    EXPECT_NEAR(found[0], -0.125, 1e-7);
    EXPECT_NEAR(found[1], 0.25, 1e-7);
    EXPECT_NEAR(found[2], 0.5, 1e-7);
    // Small enough already: not a bit changes.
    const Values before = model.gather_grad("u0.a");
    EXPECT_NEAR(value(model, clip_grad_norm(model.root(), 100, 1)), 3, 1e-5);
    EXPECT_EQ(model.gather_grad("u0.a"), before);
  });
}

// D8: the variant that hands the coefficient to the optimizer.
TEST(ClipGradNorm, D8_TheCoefficientAloneLeavesTheGradients) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), units());
    set_grads_to_clip(model);
    model.pass();
    const ClipCoefficient clip = clip_coefficient(model.root(), 3, 1);
    EXPECT_NEAR(value(model, clip.norm), 24, 24e-6);
    EXPECT_NEAR(value(model, clip.coefficient), 0.125, 1e-7);
    EXPECT_THAT(model.gather_grad("u1.c"), ::testing::ElementsAre(-1, 2, 4));
  });
}

TEST(ClipGradNorm, AnOverflowOnAnyShardReachesAllRanks) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const double p : {2.0, kInf}) {
      run_local_ranks(3, [&](auto world) {
        ShardedWeights model(std::move(world), units());
        set_grads_to_clip(model);
        model.weight(1, 0).grad = {1, 1, bad};
        model.pass();
        const ClipCoefficient clip = clip_coefficient(model.root(), 1, p);
        EXPECT_FALSE(std::isfinite(value(model, clip.norm)));
        EXPECT_EQ(std::isnan(value(model, clip.norm)), std::isnan(bad));
      });
    }
  }
}

TEST(ClipGradNorm, PaddingDoesNotCount) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), units());
    set_grads_to_clip(model);
    model.pass();
    model.device_mesh().compute().synchronize();
    // Between "a" (2 elements) and "b" (at 64) lies a gap; the shard of rank 0 ends in it.
    for (const fsdp::Unit* unit : model.root().units()) {
      if (unit->storage() && unit->name() == "u0" && unit->storage()->shard_rank() == 0) {
        unit->storage()->sharded_grad().as<float>()[10] = 1000;
      }
    }
    EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 1)), 24, 24e-6);
  });
}

// D8: root only.
TEST(ClipGradNorm, D8_IsOfTheRootModule) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), units());
    set_grads_to_clip(model);
    model.pass();
    EXPECT_NEAR(value(model, clip_grad_norm(model.model(), kInf, 1)), 24, 24e-6);
    try {
      clip_grad_norm(*model.model().parts()[1], 1);
      ADD_FAILURE() << "the norm of a part was taken for the model's";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), ::testing::StartsWith("clip_grad_norm is called on unit u1, which is inside the root chain"));
    }
  });
}

// D8: between passes only.
TEST(ClipGradNorm, D8_IsRefusedInsideAPass) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), units());
    set_grads_to_clip(model);
    fsdp::BackwardPass pass(model.root());
    try {
      clip_grad_norm(model.root(), 1);
      ADD_FAILURE() << "half a gradient was clipped";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("clip_grad_norm is called while the root is in backward"));
    }
    pass.finish();
  });
}

// D8: 300 gradients of 1 reduced in bf16, whose own sum would stop at 256; then ones whose squares fp16 cannot hold.
TEST(ClipGradNorm, D8_SumsInF32WhateverTheGradientsAreReducedIn) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    run_local_ranks(2, [&](auto world) {
      ShardedOptions options;
      options.fsdp.mixed_precision = {.param_dtype = {}, .reduce_dtype = dtype};
      ShardedWeights model(std::move(world), {{{"a", Shape{300}}}}, options);
      model.weight(0, 0).grad.assign(300, 1);
      model.pass();
      EXPECT_EQ(value(model, clip_grad_norm(model.root(), kInf, 1)), 300);
      model.root().zero_grad();
      model.weight(0, 0).grad.assign(300, 0x1p-14F);
      model.pass();
      EXPECT_NEAR(value(model, clip_grad_norm(model.root(), kInf, 2)), 0x1p-14 * std::sqrt(300.0), 1e-9);
    });
  }
}

TEST(ClipGradNorm, RefusesWhatIsNoNorm) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), units());
    const auto refused = [&](double max_norm, double p) {
      try {
        clip_grad_norm(model.root(), max_norm, p);
      } catch (const ConfigError& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    EXPECT_THAT(refused(0, 2), ::testing::HasSubstr("optim.grad_clip is 0"));
    EXPECT_THAT(refused(NAN, 2), ::testing::HasSubstr("optim.grad_clip is nan"));
    EXPECT_THAT(refused(1, 0), ::testing::HasSubstr("p is 0"));
    EXPECT_THAT(refused(1, -2), ::testing::HasSubstr("p is -2"));
    EXPECT_EQ(refused(1, 0.5), "");
  });
}

}  // namespace
}  // namespace mica::optim
