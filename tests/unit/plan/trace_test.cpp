// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/fake_group.hpp"
#include "mica/fsdp/fully_shard.hpp"
#include "mica/nn/models/gpt2.hpp"

#include "unit/plan/layers.hpp"

namespace mica::plan {
namespace {

using test::Layers;

const std::vector<UnitSpec> kRootAndB{{.name = "root"}, {.name = "b"}};

// Layers a and b, 25 f32 each: outputs and gradients of 100 bytes. Only b is a unit.
TEST(TracePass, SeesTheModelsMemoryBetweenTheHooks) {
  Layers model(3, {4, 5}, 25);
  const PassProfile profile = trace_pass(model, kRootAndB, {{Shape{1}, DType::f32}});
  struct Expected {
    HookKind kind;
    std::size_t unit;
    std::int64_t peak, end;
  };
  const std::vector<Expected> expected{
      {HookKind::pre_forward, 0, 0, 0},      //
      {HookKind::pre_forward, 1, 100, 100},  // y of a
      {HookKind::post_forward, 1, 200, 200},  {HookKind::post_forward, 0, 200, 200},  {HookKind::pre_backward, 0, 200, 200},
      {HookKind::pre_backward, 1, 200, 200},  {HookKind::post_backward, 1, 300, 300},  // dx of b
      {HookKind::post_backward, 0, 400, 200},                                          // dx of a; then dx of b and y of a go
  };
  ASSERT_EQ(profile.points.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(profile.points[i].kind, expected[i].kind) << i;
    EXPECT_EQ(profile.points[i].unit, expected[i].unit) << i;
    EXPECT_EQ(profile.points[i].before.peak.total(), expected[i].peak) << i;
    EXPECT_EQ(profile.points[i].before.activation_peak, expected[i].peak) << i;
    EXPECT_EQ(profile.points[i].before.end.activation, expected[i].end) << i;
  }
  EXPECT_EQ(profile.after.end.total(), 0);
}

TEST(TracePass, LeavesTheModelAsItWas) {
  Layers model(3, {4, 5}, 25);
  static_cast<void>(trace_pass(model, kRootAndB, {{Shape{1}, DType::f32}}));
  model.for_each_module([](const std::string&, nn::Module& module) { EXPECT_EQ(module.hooks(), nullptr); });
  model.for_each_parameter([](const std::string&, nn::Parameter& parameter) {
    EXPECT_FALSE(parameter.data);
    EXPECT_FALSE(parameter.grad);
    EXPECT_FALSE(parameter.grad_written);
  });
  // And again, with the same result.
  EXPECT_EQ(trace_pass(model, kRootAndB, {{Shape{1}, DType::f32}}).points.size(), 8U);
}

TEST(TracePass, CastsFloatingInputsAsTheRootDoes) {
  Layers model(3, {4, 5}, 25);
  const PassProfile profile = trace_pass(model, kRootAndB, {{Shape{7}, DType::f32}}, {.param_dtype = DType::bf16});
  EXPECT_EQ(profile.points[0].before.end.activation, 14);
  EXPECT_EQ(profile.points[1].before.end.activation, 100);
  const PassProfile ids = trace_pass(model, kRootAndB, {{Shape{7}, DType::i32}}, {.param_dtype = DType::bf16});
  EXPECT_EQ(ids.points[0].before.end.activation, 0);
}

// On a GPU: a, which drops its input, gives the memory back.
TEST(TracePass, CountsInputsThatComeFromThePool) {
  Layers model(3, {4, 5}, 25);
  const PassProfile profile = trace_pass(model, kRootAndB, {{Shape{7}, DType::i32}}, {.counts_inputs = true});
  EXPECT_EQ(profile.points[0].before.end.activation, 28);
  EXPECT_EQ(profile.points[1].before.peak.total(), 128);
  EXPECT_EQ(profile.after.end.total(), 0);
}

// A model that no machine here could hold: nothing but addresses is used.
TEST(TracePass, NeedsNoMemoryForALargeModel) {
  nn::Gpt2 model({.layers = 96, .heads = 96, .width = 12288, .context = 2048});
  std::vector<UnitSpec> units{{.name = "root"}};
  model.for_each_module([&](const std::string& name, nn::Module& module) {
    if (module.type_name() == "gpt2_block") units.push_back({.name = name});
  });
  ASSERT_EQ(units.size(), 97U);
  const std::int64_t rows = 1 * 2048;
  const PassProfile profile = trace_pass(model, units, {{Shape{1, 2048}, DType::i32}, {Shape{1, 2048}, DType::i32}},
                                         {.param_dtype = DType::bf16, .make_kernels = make_reference_kernels});
  // At least 16 values per token, channel and block stay for backward (Gpt2Block).
  EXPECT_GT(profile.points[2 * 97].before.activation_peak, 96 * 16 * rows * 12288 * 2);
  EXPECT_EQ(profile.after.end.total(), 0);
}

TEST(TracePass, RefusesWhatItCannotTrace) {
  Layers model(3, {4, 5}, 25);
  const auto error = [&](const std::vector<UnitSpec>& units) {
    try {
      static_cast<void>(trace_pass(model, units, {{Shape{1}, DType::f32}}));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error({{.name = "root"}, {.name = "blocks.7"}}), ::testing::HasSubstr("no module 'blocks.7'"));
  model.for_each_module([](const std::string&, nn::Module& module) { EXPECT_EQ(module.hooks(), nullptr); });

  const std::unique_ptr<Pool> pool = make_cpu_pool();
  const std::unique_ptr<Kernels> kernels = make_reference_kernels(*pool);
  Mesh mesh(make_fake_group(0, 1, nullptr), {});
  fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::inlined));
  fsdp::fully_shard(model, device_mesh, {});
  EXPECT_THAT(error({{.name = "root"}}), ::testing::HasSubstr("root is a unit already"));
}

}  // namespace
}  // namespace mica::plan
