// SPDX-License-Identifier: Apache-2.0
// docs/parity.md A1 to A5: groups, meshes and strategies.
#include <numeric>

#include "mica/comm/mesh_request.hpp"
#include "mica/fsdp/state_dict.hpp"
#include "mica/fsdp/summon.hpp"
#include "mica/fsdp/unit_tree.hpp"
#include "mica/fsdp/wrap_policy.hpp"

#include "probe_model.hpp"
#include "rank_rig.hpp"
#include "refusal.hpp"
#include "tree_module.hpp"

namespace mica::fsdp {
namespace {

using testing::expect_refusal;
using testing::RankRig;
using testing::stderr_of;
using testing::TreeModule;

TEST(Groups, A2_ShardGroupsAreRunsAndReplicateGroupsAreStrided) {
  run_local_ranks(6, [](auto world) {
    const int rank = world->rank();
    const Mesh mesh = make_mesh(std::move(world), {.shard = {}, .replicate = {}, .grid = {2, 3}});  // replicate x shard
    EXPECT_EQ(mesh.shard_size(), 3);
    EXPECT_EQ(mesh.replicas(), 2);
    EXPECT_EQ(mesh.shard_rank(), rank % 3);
    EXPECT_EQ(mesh.replica_rank(), rank / 3);
    // {0,1,2},{3,4,5} and {0,3},{1,4},{2,5}: sums of world ranks.
    const auto sum_over = [&](ProcessGroup& group) {
      const auto stream = make_cpu_stream("test", StreamMode::inlined);
      float sum = static_cast<float>(rank);
      group.all_reduce(*stream, "test", {&sum, Shape{1}, DType::f32}, ReduceOp::sum);
      return sum;
    };
    EXPECT_EQ(sum_over(mesh.shard()), rank < 3 ? 3 : 12);
    EXPECT_EQ(sum_over(mesh.replicate()), 2 * (rank % 3) + 3);
  });
}

TEST(Groups, A2_GroupsOfOnesOwnAreThePairShardThenReplicate) {
  run_local_ranks(4, [](auto world) {
    // Shard groups {0,2},{1,3}: not runs of the world.
    const int rank = world->rank();
    MeshRequest request;
    request.shard = world->split(rank % 2, rank, "mine/shard");
    request.replicate = world->split(rank / 2, rank, "mine/replicate");
    const Mesh mesh = make_mesh(std::move(world), std::move(request));
    EXPECT_EQ(mesh.shard_rank(), rank / 2);
    EXPECT_EQ(mesh.replica_rank(), rank % 2);
    EXPECT_EQ(mesh.rank(), (rank % 2) * 2 + rank / 2);
    EXPECT_EQ(mesh.shard().name(), "mine/shard");
  });
}

TEST(Groups, A2_WhatIsNoMeshIsRefused) {
  const auto refused = [](auto&& fill, std::initializer_list<const char*> names) {
    run_local_ranks(4, [&](auto world) {
      MeshRequest request;
      fill(*world, request);
      expect_refusal<ConfigError>([&] { (void)make_mesh(std::move(world), std::move(request)); }, names);
    });
  };
  const auto halves = [](ProcessGroup& w) { return w.split(w.rank() / 2, w.rank(), "a"); };
  const auto strided = [](ProcessGroup& w) { return w.split(w.rank() % 2, w.rank(), "b"); };
  refused([&](ProcessGroup& w, MeshRequest& r) { r.shard = halves(w), r.replicate = strided(w), r.grid = {2, 2}; }, {"both"});
  refused([](ProcessGroup&, MeshRequest&) {}, {"neither"});
  refused([](ProcessGroup&, MeshRequest& r) { r.grid = {4}; }, {"2 dimensions", "[4]"});
  refused([](ProcessGroup&, MeshRequest& r) { r.grid = {1, 2, 2}; }, {"2 dimensions", "[1, 2, 2]"});
  refused([](ProcessGroup&, MeshRequest& r) { r.grid = {3, 2}; }, {"3 x 2", "does not fit the 4 ranks of the world"});
  refused([&](ProcessGroup& w, MeshRequest& r) { r.shard = halves(w); }, {"replicate group is missing"});
  refused([&](ProcessGroup& w, MeshRequest& r) { r.shard = halves(w), r.replicate = halves(w); }, {"do not form a grid"});
  refused([&](ProcessGroup& w, MeshRequest& r) { r.shard = halves(w), r.replicate = w.split(0, w.rank(), "c"); }, {"a mesh of 8", "has 4"});
}

TEST(Groups, A2_AutoWrappedUnitsInheritTheRootsOptionsAndShareItsGroups) {
  run_local_ranks(4, [](auto world) {
    RankRig rig(std::move(world), 2);
    TreeModule model("root", 1);
    for (const char* name : {"a", "b"}) model.child(name, "node", 5);
    const Options options{.strategy = Strategy::hybrid_shard_zero2, .forward_prefetch = true, .root = RootOptions{.use_orig_params = true}};
    Root& root = auto_wrap(model, rig.device_mesh(), options, wrap_types({"node"}));
    ASSERT_EQ(root.units().size(), 3U);
    for (const Unit* unit : root.units()) {
      EXPECT_EQ(unit->options().strategy, Strategy::hybrid_shard_zero2);
      EXPECT_TRUE(unit->options().forward_prefetch);
      EXPECT_TRUE(unit->options().root->use_orig_params);
      EXPECT_EQ(&unit->device_mesh(), &rig.device_mesh());
    }
  });
}

TEST(Groups, A3_UnitsMayUseDifferentStrategies) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 3);
    auto& embedding = model.child("embedding", "embedding", 5);
    auto& block = model.child("block", "block", 7);
    fully_shard(embedding, rig.device_mesh(), {.strategy = Strategy::no_shard});
    fully_shard(block, rig.device_mesh(), {.strategy = Strategy::full_shard});
    fully_shard(model, rig.device_mesh(), {.strategy = Strategy::shard_grad_op});
    Root& root = root_of(model);
    root.initialize(1);
    EXPECT_EQ(root.units()[1]->storage()->shard_size(), 1);
    EXPECT_EQ(root.units()[2]->storage()->shard_size(), 2);
    nn::Record record;
    nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
    EXPECT_EQ(rig.device_mesh().unshard_group().counts().of(Collective::all_gather), 2);
    model.backward(rig.context(), std::move(record), ys);
    EXPECT_EQ(rig.device_mesh().unshard_group().counts().of(Collective::all_gather), 3);  // the block's, again
    EXPECT_EQ(rig.device_mesh().reduce_group().counts().of(Collective::reduce_scatter), 2);
    EXPECT_EQ(rig.device_mesh().all_ranks_group().counts().of(Collective::all_reduce), 1);
    // The mean over the ranks of gradients of 1.
    for (const Piece& p : root.pieces()) {
      for (const float g : rig.values(root.grad(p))) EXPECT_EQ(g, 1) << root.parameter(p).full_name;
    }
  });
}

TEST(Groups, A3_ThreeSettingsAreOneValueUnderARoot) {
  struct Case {
    const char* name;
    Options options;
  };
  const Case cases[] = {{"use_orig_params", {.root = RootOptions{.use_orig_params = true}}},
                        {"limit_all_gathers", {.root = RootOptions{.limit_all_gathers = false}}},
                        {"full_precision_in_eval", {.root = RootOptions{.full_precision_in_eval = true}}}};
  for (const Case& c : cases) {
    run_local_ranks(1, [&](auto world) {
      RankRig rig(std::move(world));
      TreeModule model("root", 3);
      fully_shard(model.child("odd", "node", 5), rig.device_mesh(), c.options);
      fully_shard(model.child("even", "node", 5), rig.device_mesh(), {});
      fully_shard(model, rig.device_mesh(), {});
      const bool odd = std::string(c.name) != "limit_all_gathers";
      expect_refusal<ConfigError>([&] { (void)root_of(model); }, {c.name, odd ? "true for unit odd" : "false for unit odd",
                                                                  odd ? "false for the root" : "true for the root"});
    });
  }
}

// Process groups are exempt from being alike: a unit on a grid of 2 x 2 under a root on 1 x 4.
TEST(Groups, A3_UnitsOfOneRootMayBeOnDifferentGroups) {
  run_local_ranks(4, [](auto world) {
    Mesh grid(world->duplicate("grid"), MeshGeometry{4, 2, 2});
    RankRig rig(std::move(world));
    DeviceMesh second(grid, rig.device_mesh());
    testing::ProbeModel model(2);
    fully_shard(*model.layers[0], second, {.strategy = Strategy::hybrid_shard});
    fully_shard(*model.layers[1], rig.device_mesh(), {});
    fully_shard(model, rig.device_mesh(), {});
    Root& root = root_of(model);
    root.initialize(1);
    EXPECT_EQ(root.units()[1]->storage()->shard_size(), 2);
    EXPECT_EQ(root.units()[2]->storage()->shard_size(), 4);
    for (testing::ProbeLayer* layer : model.layers) layer->gradient = rig.rank() + 1;  // the mean is 2.5
    for (int step = 1; step <= 2; ++step) {
      for (ProcessGroup* group : {&second.unshard_group(), &second.reduce_group(), &second.replicate_group(),
                                  &rig.device_mesh().unshard_group(), &rig.device_mesh().reduce_group()}) {
        group->reset_counts();
      }
      testing::train_pass(model, rig.context());
      EXPECT_EQ(second.unshard_group().counts().of(Collective::all_gather), 2);
      EXPECT_EQ(second.reduce_group().counts().of(Collective::reduce_scatter), 1);
      EXPECT_EQ(second.replicate_group().counts().of(Collective::all_reduce), 1);
      EXPECT_EQ(rig.device_mesh().unshard_group().counts().of(Collective::all_gather), 3);  // the root's once
      EXPECT_EQ(rig.device_mesh().reduce_group().counts().of(Collective::reduce_scatter), 2);
      for (const Piece& p : root.pieces()) {
        const bool is_layer = root.parameter(p).parameter->shape.numel() == 5;
        for (const float g : rig.values(root.grad(p))) EXPECT_EQ(g, is_layer ? 2.5F : 1.0F) << root.parameter(p).full_name;
      }
      root.zero_grad();
    }
    rig.number_masters(model);
    const StateDict dict = state_dict(model);
    EXPECT_EQ(rig.values(dict.at("a.weight").view()), testing::numbered(1, 5));
    EXPECT_EQ(rig.values(dict.at("b.weight").view()), testing::numbered(2, 5));
    {
      SummonFullParams full(model);
      rig.kernels().fill(rig.compute(), model.layers[0]->weight().data, 7);
    }
    EXPECT_EQ(rig.values(state_dict(model).at("a.weight").view()), std::vector<float>(5, 7.0F));
    expect_refusal<ConfigError>([&] { require_one_mesh(root, "a checkpoint"); },
                                {"a checkpoint needs all units on one mesh", "unit a", "2 x 2", "1 x 4"});
  });
}

TEST(Groups, A3_GridsOfOneRootAreOfTheSameDeviceAndRanks) {
  run_local_ranks(2, [](auto world) {
    Mesh alone(world->split(world->rank(), 0, "alone"), MeshGeometry{1, 1, 1});
    RankRig rig(std::move(world));
    DeviceMesh other(rig.mesh(), rig.pool(), rig.kernels(), Streams::make(StreamMode::inlined));
    TreeModule model("root", 3);
    fully_shard(model.child("inner", "node", 5), other, {});
    fully_shard(model, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(model); }, {"inner", "streams and memory other than its root's"});

    DeviceMesh fewer(alone, rig.device_mesh());
    TreeModule second("root", 3);
    fully_shard(second.child("inner", "node", 5), fewer, {});
    fully_shard(second, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(second); }, {"inner", "a mesh of 1 ranks", "one of 2"});
  });
}

std::int64_t calls_of(const ProcessGroup& group) {
  return std::accumulate(group.counts().calls.begin(), group.counts().calls.end(), std::int64_t{0});
}

/// Warnings of one rank, or of four ranks on a mesh of `replicas` x 1.
std::string warnings(Strategy strategy, int replicas) {
  return stderr_of([&] {
    run_local_ranks(replicas, [&](auto world) {
      const bool first = world->rank() == 0;
      RankRig rig(std::move(world), 1, first ? Logger::to_stderr(LogLevel::warn, "") : Logger());
      TreeModule model("root", 3);
      model.child("a", "node", 5);
      Root& root = auto_wrap(model, rig.device_mesh(), {.strategy = strategy}, wrap_types({"node"}));
      EXPECT_EQ(root.units()[0]->options().strategy, Strategy::no_shard);
      root.initialize(1);
      nn::Record record;
      const nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
      model.backward(rig.context(), std::move(record), ys);
      EXPECT_EQ(calls_of(rig.device_mesh().unshard_group()), 0);
      EXPECT_EQ(calls_of(rig.device_mesh().reduce_group()), 0);
      EXPECT_EQ(calls_of(rig.device_mesh().all_ranks_group()), 0);
      // One a unit; none when the world is 1.
      EXPECT_EQ(rig.device_mesh().replicate_group().counts().of(Collective::all_reduce), replicas > 1 ? 2 : 0);
      for (const Piece& p : root.pieces()) {
        for (const float g : rig.values(root.grad(p))) EXPECT_EQ(g, 1);
      }
    });
  });
}

TEST(Groups, A4_AShardAxisOfOneActsAsNoShardAndSaysSoOnce) {
  EXPECT_EQ(warnings(Strategy::no_shard, 1), "");
  EXPECT_EQ(warnings(Strategy::no_shard, 4), "");
  for (const auto& [strategy, replicas] :
       {std::pair{Strategy::full_shard, 1}, {Strategy::hybrid_shard, 4}, {Strategy::hybrid_shard_zero2, 3}}) {
    const std::string log = warnings(strategy, replicas);
    EXPECT_NE(log.find(std::string(strategy_name(strategy)) + " of unit root acts as no_shard"), std::string::npos) << log;
    EXPECT_EQ(log.find("acts as no_shard"), log.rfind("acts as no_shard")) << log;
  }
}

TEST(Groups, A5_TheDivisionOfGradientsIsSplit) {
  struct Row {
    int world;
    double pre, post;
  };
  for (const Row& row : {Row{1, 1, 1}, {2, 2, 1}, {3, 2, 1.5}, {4, 2, 2}, {6, 4, 1.5}, {8, 4, 2}, {128, 16, 8}}) {
    EXPECT_EQ(division_factors(row.world).pre, row.pre) << row.world;
    EXPECT_EQ(division_factors(row.world).post, row.post) << row.world;
  }
}

}  // namespace
}  // namespace mica::fsdp
