// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C6: sync_module_states.
#include "mica/fsdp/summon.hpp"

#include "norm_like.hpp"
#include "rank_rig.hpp"

namespace mica::fsdp::testing {
namespace {

/// A unit of Linear(3 -> 5) inside a unit of { that, NormLike(5) }.
struct Nested {
  Nested(RankRig& rig, bool sync) {
    Options options{.strategy = rig.mesh().replicas() > 1 ? Strategy::hybrid_shard : Strategy::full_shard};
    options.sync_module_states = sync;
    auto& linear = model.add<nn::Linear>("linear", 3, 5);
    norm = &model.add<NormLike>("norm", 5);
    fully_shard(linear, rig.device_mesh(), options);
    fully_shard(model, rig.device_mesh(), options);
  }
  std::vector<float> values(RankRig& rig) {
    SummonFullParams full(model, {.write_back = false});
    std::vector<float> all;
    model.for_each_parameter([&](const std::string&, nn::Parameter& p) {
      for (const float v : rig.values(p.data)) all.push_back(v);
    });
    for (const float v : rig.values(norm->mean().data)) all.push_back(v);
    all.push_back(static_cast<float>(*norm->batches().data.as<std::int64_t>()));
    return all;
  }
  nn::Sequential model;
  NormLike* norm = nullptr;
};

/// @returns what a world of one rank gives with `seed`.
std::vector<float> alone(std::uint64_t seed) {
  std::vector<float> values;
  run_local_ranks(1, [&](auto world) {
    RankRig rig(std::move(world));
    Nested nested(rig, false);
    root_of(nested.model).initialize(seed);
    values = nested.values(rig);
  });
  return values;
}

// C6: every rank starts with rank 0's parameters and buffers, over both axes of the mesh.
TEST(C6Sync, BroadcastsRank0sStates) {
  const std::vector<float> rank0 = alone(100);
  for (const auto& [ranks, shard_size] : {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 2}, {6, 3}, {4, 1}}) {
    for (const bool with_function : {false, true}) {
      run_local_ranks(ranks, [&, ranks = ranks, shard_size = shard_size](auto world) {
        RankRig rig(std::move(world), shard_size);
        Nested nested(rig, true);
        InitializeOptions options{.seed = 100 + static_cast<std::uint64_t>(rig.rank())};
        if (with_function) options.function = [](ModuleInit& init) { init.fill_default(); };
        root_of(nested.model).initialize(options);
        EXPECT_EQ(nested.values(rig), rank0) << ranks << " ranks, shard size " << shard_size << ", rank " << rig.rank();
      });
    }
  }
}

// C6: the option is off by default; then nothing is sent.
TEST(C6Sync, IsOffByDefault) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Nested nested(rig, Options{}.sync_module_states);
    root_of(nested.model).initialize(100 + static_cast<std::uint64_t>(rig.rank()));
    EXPECT_EQ(rig.mesh().shard().counts().of(Collective::broadcast), 0);
  });
}

// C6: buckets, shard group before replicate group, each buffer once even with nested units.
TEST(C6Sync, SendsBuckets) {
  run_local_ranks(4, [](auto world) {
    RankRig rig(std::move(world), 2);
    Nested nested(rig, true);
    const auto broadcasts = [&](ProcessGroup& group) { return group.counts().of(Collective::broadcast); };
    const auto bytes = [&](ProcessGroup& group) { return group.counts().bytes_of(Collective::broadcast); };
    root_of(nested.model).initialize(1);
    // One bucket a unit: weight 60 and bias 20 bytes; norm's weight 20, mean 20, num_batches 8; slots of 64 bytes.
    EXPECT_EQ(broadcasts(rig.mesh().shard()), 2);
    EXPECT_EQ(broadcasts(rig.mesh().replicate()), 2);
    EXPECT_EQ(bytes(rig.mesh().shard()), 5 * 64);
    EXPECT_EQ(bytes(rig.mesh().replicate()), 5 * 64);
    // Buckets of 128 bytes: 2 states, then 2 and 1; one alone is sent as it is.
    rig.mesh().shard().reset_counts();
    root_of(nested.model).initialize({.seed = 1, .sync_bucket_bytes = 128});
    EXPECT_EQ(broadcasts(rig.mesh().shard()), 3);
    EXPECT_EQ(bytes(rig.mesh().shard()), 4 * 64 + 8);
    // Smaller than any: every state alone.
    rig.mesh().shard().reset_counts();
    root_of(nested.model).initialize({.seed = 1, .sync_bucket_bytes = 1});
    EXPECT_EQ(broadcasts(rig.mesh().shard()), 5);
    EXPECT_EQ(bytes(rig.mesh().shard()), 60 + 20 + 20 + 20 + 8);
    EXPECT_EQ(InitializeOptions{}.sync_bucket_bytes, 250 * 1024 * 1024);
  });
}

// C6: data that only rank 0 was given reaches all ranks (a checkpoint that rank 0 has read).
TEST(C6Sync, DataGivenOnRank0Alone) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({3, 5});
    Options options;
    options.sync_module_states = true;
    fully_shard(*model, rig.device_mesh(), options);
    std::vector<float> weight(15, 7), bias(5, 8);
    const auto& parameters = model->children()[0].module->own_parameters();
    if (rig.rank() == 0) {
      parameters[0]->data = {weight.data(), Shape{5, 3}, DType::f32};
      parameters[1]->data = {bias.data(), Shape{5}, DType::f32};
    }
    root_of(*model).initialize(1);
    SummonFullParams full(*model, {.write_back = false});
    EXPECT_EQ(rig.values(parameters[0]->data), weight);
    EXPECT_EQ(rig.values(parameters[1]->data), bias);
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
