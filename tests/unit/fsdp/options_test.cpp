#include "mica/fsdp/options.hpp"

#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/fsdp/fully_shard.hpp"

namespace mica::fsdp {
namespace {

TEST(Strategy, NamesRoundTripAndUnknownOnesListTheChoices) {
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
