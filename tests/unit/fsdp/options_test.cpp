// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/fsdp/fully_shard.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

#include "testing/local_group.hpp"

namespace mica::fsdp {
namespace {

using ::testing::HasSubstr;

TEST(Strategy, A1_NamesRoundTripAndUnknownOnesListTheChoices) {
  for (const Strategy s : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard, Strategy::hybrid_shard,
                           Strategy::hybrid_shard_zero2, Strategy::shard_optim}) {
    EXPECT_EQ(strategy_from_name(strategy_name(s)), s);
  }
  EXPECT_THROW((void)strategy_from_name("zero3"), ConfigError);
}

TEST(Strategy, FullShardOnAPartOfTheWorldNamesHybrid) {
  const MeshGeometry two_by_two{.world_size = 4, .shard_size = 2, .replicas = 2};
  try {
    check_strategy(Strategy::full_shard, two_by_two);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("hybrid_shard"), std::string::npos);
  }
  EXPECT_NO_THROW(check_strategy(Strategy::hybrid_shard, two_by_two));
  EXPECT_NO_THROW(check_strategy(Strategy::full_shard, {.world_size = 4, .shard_size = 4, .replicas = 1}));
}

/// What sharding a linear layer with the options is refused with; empty if it is not.
std::string refusal_of(const Options& inner, const Options& of_root) {
  std::string text;
  run_local_ranks(1, [&](auto world) {
    const std::unique_ptr<Pool> pool = make_cpu_pool();
    const std::unique_ptr<Kernels> kernels = make_reference_kernels(*pool);
    Mesh mesh(std::move(world), {.world_size = 1, .shard_size = 1, .replicas = 1});
    DeviceMesh device_mesh(mesh, *pool, *kernels, Streams::make(StreamMode::inlined));
    nn::Sequential model;
    nn::Linear& layer = model.add<nn::Linear>("fc", 3, 3);
    try {
      fully_shard(layer, device_mesh, inner);
      fully_shard(model, device_mesh, of_root);
      root_of(model).initialize(1);
    } catch (const ConfigError& error) {
      text = error.what();
    }
  });
  return text;
}

// A6: only a strategy that reshards after forward can do so over fewer ranks.
TEST(Options, A6_ReshardingAfterForwardNeedsAStrategyThatReshards) {
  for (const Strategy s : {Strategy::shard_grad_op, Strategy::no_shard, Strategy::hybrid_shard_zero2, Strategy::shard_optim}) {
    const std::string text = refusal_of({.strategy = s, .reshard_after_forward_ranks = 1}, {});
    EXPECT_THAT(text, HasSubstr(fmt::format("reshard_after_forward_ranks = 1 and strategy {}: after forward", strategy_name(s))));
  }
  EXPECT_THAT(refusal_of({.reshard_after_forward_ranks = -2}, {}), HasSubstr("reshard_after_forward_ranks = -2"));
  for (const Strategy s : {Strategy::full_shard, Strategy::hybrid_shard}) {
    EXPECT_EQ(refusal_of({.strategy = s, .reshard_after_forward_ranks = 1}, {}), "");
  }
}

// F3: norms, no_sync and the division behind the last backward go by one way to reduce.
TEST(Options, A3_ADeterministicReductionIsTheWholeRoots) {
  const Options deterministic{.root = RootOptions{.deterministic = true}};
  EXPECT_THAT(refusal_of(deterministic, {}),
              HasSubstr("deterministic is one value under a root: it is true for unit fc and false for the root"));
  EXPECT_EQ(refusal_of(deterministic, deterministic), "");
  EXPECT_EQ(refusal_of({}, deterministic), "") << "a unit that says nothing has its root's";
  EXPECT_THAT(refusal_of({.reduction = &compressing_reduction(DType::bf16)}, deterministic),
              HasSubstr("unit fc has a reduction of its own under a deterministic root"));
}

TEST(Options, ReduceDtypeFollowsParamDtype) {
  Options options;
  EXPECT_EQ(options.reduce_dtype(), DType::f32);
  options.mixed_precision.param_dtype = DType::bf16;
  EXPECT_EQ(options.reduce_dtype(), DType::bf16);
  options.mixed_precision.reduce_dtype = DType::f32;
  EXPECT_EQ(options.reduce_dtype(), DType::f32);
}

}  // namespace
}  // namespace mica::fsdp
