// SPDX-License-Identifier: Apache-2.0
// The fsdp keys of a config and the options that they become.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/train/config.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;

Config config_of(const std::string& fsdp_section) {
  return parse_config({"x.cfg", "[data]\ntrain = a.h5\n[model]\ntype = mlp\n[fsdp]\n" + fsdp_section}, {});
}
fsdp::Options options_of(const std::string& fsdp_section) {
  const Config config = config_of(fsdp_section);
  check_config(config);
  return fsdp_options(config);
}

template <class Action>
std::string refusal_of(Action&& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

// D6: buffer_dtype and keep_low_precision_grads are unset by default.
TEST(FsdpKeys, D6_MixedPrecision) {
  EXPECT_FALSE(options_of("").mixed_precision.buffer_dtype);
  EXPECT_FALSE(options_of("").mixed_precision.keep_low_precision_grads);
  const fsdp::Options options = options_of("buffer_dtype = bf16\nkeep_low_precision_grads = true\nreduce_dtype = fp16\n");
  EXPECT_EQ(options.mixed_precision.buffer_dtype, DType::bf16);
  EXPECT_TRUE(options.mixed_precision.keep_low_precision_grads);
  EXPECT_EQ(options.grad_dtype(), DType::f16);
  EXPECT_EQ(options_of("reduce_dtype = fp16\n").grad_dtype(), DType::f32);
  EXPECT_THAT(refusal_of([] { options_of("buffer_dtype = int8\n"); }),
              HasSubstr("x.cfg:6: fsdp.buffer_dtype is 'int8', expected one of auto, fp32, bf16, fp16"));
}

TEST(FsdpKeys, Recompute) {
  Device cpu, gpu;
  gpu.gpu = GpuInfo{};
  EXPECT_EQ(recompute_policy(config_of(""), cpu), nn::Recompute::cheap);
  EXPECT_EQ(recompute_policy(config_of(""), gpu), nn::Recompute::none);
  for (const Device* device : {&cpu, &gpu}) {
    EXPECT_EQ(recompute_policy(config_of("recompute = cheap\n"), *device), nn::Recompute::cheap);
    EXPECT_EQ(recompute_policy(config_of("recompute = none\n"), *device), nn::Recompute::none);
  }
  EXPECT_THAT(refusal_of([] { config_of("recompute = all\n"); }),
              HasSubstr("x.cfg:6: fsdp.recompute is 'all', expected one of auto, none, cheap"));
}

/// As if 6 ranks ran on two nodes, 3 on each.
MeshGeometry on_two_nodes(const Config& config) {
  std::vector<RankPlace> places;
  for (int rank = 0; rank < 6; ++rank) places.push_back({rank, rank < 3 ? "a" : "b", rank / 3, rank % 3});
  return MeshGeometry::make(places, shard_size_of(config));
}

// A2: hybrid strategies shard within the node, as PyTorch's, and all others over the world.
TEST(FsdpKeys, A2_ShardSizeFollowsTheStrategy) {
  for (const char* hybrid : {"hybrid_shard", "hybrid_shard_zero2"}) {
    const MeshGeometry geometry = on_two_nodes(config_of(fmt::format("strategy = {}\n", hybrid)));
    EXPECT_EQ(geometry.shard_size, 3) << hybrid;
    EXPECT_EQ(geometry.replicas, 2) << hybrid;
  }
  for (const char* other : {"full_shard", "shard_grad_op", "no_shard", "shard_optim"}) {
    EXPECT_EQ(on_two_nodes(config_of(fmt::format("strategy = {}\n", other))).shard_size, 6) << other;
  }
}

TEST(FsdpKeys, ShardSizeAsTold) {
  const auto shard_size = [](const std::string& told) {
    return on_two_nodes(config_of("strategy = hybrid_shard\n[mesh]\nshard_size = " + told + "\n")).shard_size;
  };
  EXPECT_EQ(shard_size("auto"), 3);
  EXPECT_EQ(shard_size("node"), 3);
  EXPECT_EQ(shard_size("world"), 6);
  EXPECT_EQ(shard_size("2"), 2);
  EXPECT_EQ(shard_size("+3"), 3) << "what the key takes";
  EXPECT_THAT(refusal_of([&] { shard_size("rack"); }),
              HasSubstr("mesh.shard_size is 'rack', expected auto, world, node or a whole number from 1"));
}

// C4: a chosen dim for parameters by their names; the first pattern that fits decides.
TEST(FsdpKeys, C4_ShardDims) {
  EXPECT_TRUE(options_of("").shard_dims.empty());
  const fsdp::Options options = options_of("sharding = per_parameter\nshard_dims = *.fc_in.weight:1, *.weight:-1\n");
  ASSERT_EQ(options.shard_dims.size(), 2U);
  EXPECT_EQ(options.shard_dims[0].pattern, "*.fc_in.weight");
  EXPECT_EQ(options.shard_dims[0].dim, 1);
  EXPECT_EQ(options.shard_dims[1].pattern, "*.weight");
  EXPECT_EQ(options.shard_dims[1].dim, -1);
  EXPECT_EQ(options_of("sharding = per_parameter\nshard_dims = *.weight:+1\n").shard_dims.at(0).dim, 1);
}

TEST(FsdpKeys, ShardDimsThatCannotBe) {
  EXPECT_THAT(refusal_of([] { options_of("shard_dims = *.weight:1\n"); }),
              HasSubstr("fsdp.shard_dims = *.weight:1 has no effect with fsdp.sharding = flat"));
  for (const char* wrong : {"*.weight", "*.weight:", "*.weight:one", "*.weight:+-1", "*.weight:++1", ":1", "a:1,b"}) {
    EXPECT_THAT(refusal_of([&] { config_of(fmt::format("shard_dims = {}\n", wrong)); }),
                HasSubstr(fmt::format("fsdp.shard_dims is '{}', expected glob:dim, separated by commas", wrong)));
  }
  Config set_in_code = config_of("sharding = per_parameter\n");
  set_in_code.fsdp.shard_dims = {"*.weight:x"};
  EXPECT_THAT(refusal_of([&] { static_cast<void>(fsdp_options(set_in_code)); }),
              HasSubstr("fsdp.shard_dims holds '*.weight:x', expected glob:dim"));
  const Config config = config_of("sharding = per_parameter\nshard_dims = *.weigth:1\n");
  EXPECT_THAT(refusal_of([&] { static_cast<void>(make_module(config)); }),
              HasSubstr("fsdp.shard_dims: the pattern '*.weigth' fits no parameter of the model"));
}

}  // namespace
}  // namespace mica::train
