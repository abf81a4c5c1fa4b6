// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C4 (per-parameter sharding at run time), A6 (resharding among neighbours) and B4 (frozen units at run time).
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "mica/fsdp/per_parameter_layout.hpp"

#include "probe_model.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;
using ::testing::HasSubstr;

Options per_parameter() {
  Options options;
  options.sharding = Sharding::per_parameter;
  return options;
}

/// Linear(5 -> 7) as a unit: weight [7, 5], bias [7].
struct OneLinear {
  explicit OneLinear(RankRig& rig, const Options& options, std::int64_t in = 5, std::int64_t out = 7)
      : model(in, out, {.weight_std = 1.0}) {
    fully_shard(model, rig.device_mesh(), options);
    root_of(model).initialize(1);
  }
  UnitStorage& storage() { return *unit_of(model).storage(); }
  nn::Parameter& weight() { return *model.own_parameters()[0]; }
  nn::Parameter& bias() { return *model.own_parameters()[1]; }
  nn::Linear model;
};

/// Rows r*c .. of [7, 5] over S ranks: c = ceil(7 / S), the last ranks fewer or none.
TEST(C4PerParameter, EveryParameterIsCutAlongItsRows) {
  const std::vector<std::vector<std::int64_t>> rows{{}, {7}, {4, 3}, {3, 3, 1}, {2, 2, 2, 1}};
  for (int num_ranks = 2; num_ranks <= 4; ++num_ranks) {
    run_local_ranks(num_ranks, [&](auto world) {
      RankRig rig(std::move(world));
      OneLinear linear(rig, per_parameter());
      const std::int64_t mine = rows[static_cast<std::size_t>(num_ranks)][static_cast<std::size_t>(rig.rank())];
      std::int64_t numel = 0;
      for (const Piece& p : root_of(linear.model).pieces()) numel += p.numel();
      EXPECT_EQ(numel, mine * 5 + mine);
      // Gathered in one collective for the whole unit.
      rig.number_masters(linear.model);
      unit_of(linear.model).unshard().wait();
      EXPECT_EQ(all_gathers(rig.device_mesh()), 1);
      EXPECT_EQ(rig.values(linear.weight().data), numbered(0, 35));
      EXPECT_EQ(rig.values(linear.bias().data), numbered(1, 7));
    });
  }
}

// C4: SHARDED and UNSHARDED, and which of them owns memory; a saved reference to a parameter stays valid through both.
TEST(C4PerParameter, StatesOwnMemoryAndTheParameterIsOneObject) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    OneLinear linear(rig, per_parameter());
    nn::Parameter& saved = linear.weight();
    const auto unsharded_bytes = [&] { return rig.pool().stats().current_of(MemoryRole::unsharded_param); };
    EXPECT_EQ(linear.storage().state(), ShardState::sharded);
    EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::sharded_param), 4 * (4 * 5 + 4));  // 4 rows of each, padded on rank 1
    EXPECT_EQ(unsharded_bytes(), 0);
    for (int i = 0; i < 2; ++i) {
      unit_of(linear.model).unshard().wait();
      EXPECT_EQ(linear.storage().state(), ShardState::unsharded);
      EXPECT_EQ(unsharded_bytes(), 4 * linear.storage().layout().unsharded_numel());
      EXPECT_EQ(linear.storage().layout().unsharded_numel(), 64 + 8);  // 8 x 5 rows, aligned; 8 of the bias
      EXPECT_EQ(saved.data.shape, (Shape{7, 5}));
      unit_of(linear.model).reshard();
      EXPECT_EQ(linear.storage().state(), ShardState::sharded);
      EXPECT_FALSE(saved.data);
      EXPECT_EQ(unsharded_bytes(), 0);
    }
  });
}

// C4: a chosen dim if it divides evenly, negative counting from the end; beyond the shape or uneven: refused.
TEST(C4PerParameter, ChosenDims) {
  for (const int dim : {1, -1}) {
    run_local_ranks(3, [&](auto world) {
      RankRig rig(std::move(world));
      Options options = per_parameter();
      options.shard_dims = {{"weight", dim}};
      OneLinear linear(rig, options, 6, 5);
      const Root& root = root_of(linear.model);
      ASSERT_FALSE(root.pieces().empty());
      EXPECT_EQ(root.pieces()[0].dim, 1);
      EXPECT_EQ(root.pieces()[0].begin, 2 * rig.rank());
      EXPECT_EQ(root.pieces()[0].end, 2 * rig.rank() + 2);
      for (const Piece& p : root.pieces()) {
        for (std::int64_t i = 0; i < p.num_runs(); ++i) {
          const auto run = p.run(i);
          for (std::int64_t j = 0; j < run.numel(); ++j)
            root.storage(p).write_master().as<float>()[run.offset + j] = static_cast<float>(run.begin + j);
        }
      }
      unit_of(linear.model).unshard().wait();
      EXPECT_EQ(rig.values(linear.weight().data), numbered(0, 30));
      EXPECT_EQ(rig.values(linear.bias().data), numbered(0, 5));
    });
  }
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    for (const auto& [dim, text] : {std::pair{2, "parameter weight [7, 5] is to be sharded on dim 2, expected -2 to 1"},
                                    std::pair{-3, "parameter weight [7, 5] is to be sharded on dim -3, expected -2 to 1"},
                                    std::pair{1, "whose 5 indices do not divide evenly over 2 ranks"}}) {
      Options options = per_parameter();
      options.shard_dims = {{"weight", dim}};
      EXPECT_THAT(error_of<ConfigError>([&] { OneLinear refused(rig, options); }), HasSubstr(text));
    }
  });
}

// --- hooks ------------------------------------------------------------------------------------------------------------

// C4: hooks come as a pair, on dim 0 of a per-parameter layout.
TEST(C4Hooks, OneAloneIsAnError) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    OneLinear linear(rig, per_parameter());
    AllGatherHooks pre = int8_all_gather(), post = int8_all_gather();
    pre.post = nullptr;
    post.pre = nullptr;
    EXPECT_THAT(error_of<ConfigError>([&] { linear.storage().set_all_gather_hooks(linear.weight(), pre); }),
                HasSubstr("parameter weight has a pre all-gather hook alone: hooks come as a pair"));
    EXPECT_THAT(error_of<ConfigError>([&] { linear.storage().set_all_gather_hooks(linear.weight(), post); }),
                HasSubstr("a post all-gather hook alone"));
    OneLinear flat(rig, {});
    EXPECT_THAT(error_of<ConfigError>([&] { flat.storage().set_all_gather_hooks(flat.weight(), int8_all_gather()); }),
                HasSubstr("fsdp.sharding=per_parameter"));
    Options options = per_parameter();
    options.shard_dims = {{"weight", 1}};
    OneLinear columns(rig, options, 6, 5);
    EXPECT_THAT(error_of<ConfigError>([&] { columns.storage().set_all_gather_hooks(columns.weight(), int8_all_gather()); }),
                HasSubstr("is sharded on dim 1: expected 0"));
  });
}

// C4, the worked example: 8-bit weights with one scale a shard. What forward sees is within half a scale of the master,
// the rest of the unit exact, and fewer bytes travel.
TEST(C4Hooks, EightBitAllGather) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    for (const std::int64_t out : {7, 1, 13}) {  // uneven rows, fewer rows than ranks
      run_local_ranks(num_ranks, [&](auto world) {
        RankRig rig(std::move(world));
        OneLinear linear(rig, per_parameter(), 5, out), plain(rig, per_parameter(), 5, out);
        linear.storage().set_all_gather_hooks(linear.weight(), int8_all_gather());
        for (int i = 0; i < 2; ++i) {
          unit_of(linear.model).unshard().wait();
          unit_of(plain.model).unshard().wait();
          const auto seen = rig.values(linear.weight().data), exact = rig.values(plain.weight().data);
          ASSERT_EQ(seen.size(), static_cast<std::size_t>(5 * out));
          const std::int64_t chunk = (out + num_ranks - 1) / num_ranks * 5;
          bool any_differs = false;
          for (std::size_t at = 0; at < seen.size(); ++at) {
            const auto begin = static_cast<std::int64_t>(at) / chunk * chunk;
            float largest = 0;
            for (std::int64_t j = begin; j < std::min<std::int64_t>(begin + chunk, 5 * out); ++j)
              largest = std::max(largest, std::abs(exact[static_cast<std::size_t>(j)]));
            EXPECT_NEAR(seen[at], exact[at], 1.001F * largest / 127 / 2) << num_ranks << " ranks, element " << at;
            any_differs = any_differs || seen[at] != exact[at];
          }
          EXPECT_EQ(any_differs, num_ranks > 1);  // over one rank nothing is gathered
          EXPECT_EQ(rig.values(linear.bias().data), rig.values(plain.bias().data));
          unit_of(linear.model).reshard();
          unit_of(plain.model).reshard();
        }
      });
    }
  }
}

// C4: eight bits have no way to say NaN or infinity: a shard that has one arrives as NaN, not as plausible numbers.
TEST(C4Hooks, EightBitAllGatherHidesNoNan) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int at : {0, 4, 9}) {
      run_local_ranks(2, [&](auto world) {
        RankRig rig(std::move(world));
        OneLinear linear(rig, per_parameter(), 5, 4);  // two rows a rank
        linear.storage().set_all_gather_hooks(linear.weight(), int8_all_gather());
        const Root& root = root_of(linear.model);
        for (const Piece& p : root.pieces()) {
          if (root.parameter(p).parameter == &linear.weight() && rig.rank() == 1) root.write_master(p).as<float>()[at] = bad;
        }
        unit_of(linear.model).unshard().wait();
        const auto seen = rig.values(linear.weight().data);
        for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(std::isnan(seen[i]), i >= 10) << i;
      });
    }
  }
}

// C4 [better]: sizes that differ between ranks are an error on all of them, not a hang of those that are right.
TEST(C4Hooks, SizesThatDifferAreAnErrorOnAllRanks) {
  for (const int num_ranks : {2, 3}) {
    std::vector<std::string> texts(static_cast<std::size_t>(num_ranks));
    run_local_ranks(num_ranks, [&](auto world) {
      RankRig rig(std::move(world));
      OneLinear linear(rig, per_parameter());
      AllGatherHooks hooks = int8_all_gather();
      // Only the rows that a rank has, without padding.
      hooks.pre = [](const AllGatherHooks::PreArgs& args) {
        AllGatherHooks::Inputs inputs;
        const Shape shape{args.num_rows * 5};
        inputs.tensors.emplace_back(args.pool.allocate(shape.numel() * 4, MemoryRole::communication, args.stream), shape, DType::f32);
        args.kernels.fill(args.stream, inputs.tensors[0], 1.0);
        return inputs;
      };
      linear.storage().set_all_gather_hooks(linear.weight(), hooks);
      texts[static_cast<std::size_t>(rig.rank())] = error_of<Error>([&] { static_cast<void>(unit_of(linear.model).unshard()); });
    });
    for (const std::string& text : texts) {
      EXPECT_THAT(text, HasSubstr("the all-gather hook of parameter weight [7, 5] gives"));
      EXPECT_THAT(text, HasSubstr(num_ranks == 2 ? "80, 60 bytes on ranks 0 to 1" : "60, 60, 20 bytes on ranks 0 to 2"));
    }
  }
}

// C4: the ranks agree on sizes once; a hook that later gives others on one rank stops there instead of waiting for
// bytes that never come.
TEST(C4Hooks, SizesMayNotChangeLater) {
  std::vector<std::string> texts(2);
  run_local_ranks(2, [&](auto world) {
    RankRig rig(std::move(world));
    OneLinear linear(rig, per_parameter());
    AllGatherHooks hooks = int8_all_gather();
    std::int64_t numel = 8;
    hooks.pre = [&](const AllGatherHooks::PreArgs& args) {
      AllGatherHooks::Inputs inputs;
      inputs.tensors.emplace_back(args.pool.allocate(numel * 4, MemoryRole::communication, args.stream), Shape{numel}, DType::f32);
      args.kernels.fill(args.stream, inputs.tensors[0], 1.0);
      return inputs;
    };
    hooks.post = [](const AllGatherHooks::PostArgs& args) { args.kernels.fill(args.stream, args.parameter, 1.0); };
    linear.storage().set_all_gather_hooks(linear.weight(), hooks);
    unit_of(linear.model).unshard().wait();
    unit_of(linear.model).reshard();
    if (rig.rank() == 1) numel = 16;
    texts[static_cast<std::size_t>(rig.rank())] = error_of<Error>([&] {
      unit_of(linear.model).unshard().wait();
      rig.compute().synchronize();
    });
    root_of(linear.model).abandon_step();  // rank 0 has waited for a rank that left
  });
  EXPECT_THAT(texts[1], HasSubstr("the all-gather hook of parameter weight [7, 5] gives 64 bytes, but gave 32 in the first all-gather"));
}

// --- A6 ---------------------------------------------------------------------------------------------------------------

Options among(int num_neighbours, Sharding sharding) {
  Options options;
  options.reshard_after_forward_ranks = num_neighbours;
  options.sharding = sharding;
  return options;
}

// A6, C4: between forward and backward a part among the neighbours, whose copy counts in memory until the next unshard.
TEST(A6Neighbours, ThePartCountsUntilTheNextUnshard) {
  for (const Sharding sharding : {Sharding::flat, Sharding::per_parameter}) {
    run_local_ranks(4, [&](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(
          2, [](const std::string&) {}, 64);
      for (ProbeLayer* layer : model.layers) fully_shard(*layer, rig.device_mesh(), among(2, sharding));
      fully_shard(model, rig.device_mesh(), {.sharding = sharding});
      root_of(model).initialize(1);
      const auto sharded_bytes = [&] { return rig.pool().stats().current_of(MemoryRole::sharded_param); };
      const std::int64_t masters = sharded_bytes();
      nn::Record record;
      nn::Tensors ys = model.forward(rig.context(), {input_of(rig.context())}, &record);
      for (ProbeLayer* layer : model.layers) EXPECT_EQ(unit_of(*layer).storage()->state(), ShardState::sharded_post_forward);
      EXPECT_EQ(sharded_bytes(), masters + 2 * 4 * 64 / 2);
      EXPECT_EQ(all_gathers(rig.device_mesh()), 3);
      model.backward(rig.context(), std::move(record), std::move(ys));
      EXPECT_EQ(all_gathers(rig.device_mesh()), 3);  // backward gathers among the neighbours
      EXPECT_EQ(rig.device_mesh().neighbour_group(2).counts().of(Collective::all_gather), 2);
      EXPECT_EQ(sharded_bytes(), masters);
      for (ProbeLayer* layer : model.layers) EXPECT_EQ(unit_of(*layer).storage()->state(), ShardState::sharded);
      // Entered from UNSHARDED only, and given up by an explicit reshard: the next step gathers over the whole axis.
      nn::Record dropped;
      static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, &dropped));
      dropped.clear();
      root_of(model).reshard();
      EXPECT_EQ(sharded_bytes(), masters);
    });
  }
}

// A6: refused where it does not divide, with hooks, and with another dim.
TEST(A6Neighbours, Refusals) {
  run_local_ranks(4, [](auto world) {
    RankRig rig(std::move(world));
    for (const int bad : {3, 8}) {
      EXPECT_THAT(error_of<ConfigError>([&] { OneLinear refused(rig, among(bad, Sharding::flat)); }),
                  HasSubstr(fmt::format("fsdp.reshard_after_forward is {} ranks, which does not divide the shard axis of 4 ranks", bad)));
    }
    // Weight 50, a gap to 64, bias 10, padded for 4 ranks: 76 elements, which do not divide over 3 ranks either.
    EXPECT_THAT(error_of<ConfigError>([&] { OneLinear refused(rig, among(3, Sharding::flat), 5, 10); }),
                HasSubstr("does not divide the shard axis of 4 ranks"));
    OneLinear linear(rig, among(2, Sharding::per_parameter));
    EXPECT_THAT(error_of<ConfigError>([&] { linear.storage().set_all_gather_hooks(linear.weight(), int8_all_gather()); }),
                HasSubstr("parameter weight has all-gather hooks, but its unit root reshards among neighbours"));
    Options columns = among(2, Sharding::per_parameter);
    columns.shard_dims = {{"weight", 1}};
    EXPECT_THAT(error_of<ConfigError>([&] { OneLinear refused(rig, columns, 8, 5); }), HasSubstr("needs every parameter sharded on dim 0"));
  });
}

// --- B4 ---------------------------------------------------------------------------------------------------------------

// A group that was refused is not there: asking again is refused again, and what looks at all groups finds none.
TEST(A6Neighbours, ARefusedGroupLeavesNothing) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(error_of<ConfigError>([&] { static_cast<void>(rig.device_mesh().neighbour_group(3)); }),
                  HasSubstr("fsdp.reshard_after_forward is 3 ranks"));
      EXPECT_GE(rig.device_mesh().communication_ms(), 0);
    }
    EXPECT_EQ(rig.device_mesh().neighbour_group(2).num_ranks(), 2);
  });
}

std::int64_t gathers_in_backward(RankRig& rig, ProbeModel& model) {
  nn::Record record;
  nn::Tensors ys = model.forward(rig.context(), {input_of(rig.context())}, &record);
  const std::int64_t before = all_gathers(rig.device_mesh());
  model.backward(rig.context(), std::move(record), std::move(ys));
  return all_gathers(rig.device_mesh()) - before;
}

// B4: a frozen prefix is neither unsharded nor prefetched in backward; a frozen unit that gradients pass through is, and
// resharded afterwards. Reductions count only trainable units. Unfreezing mid-run works.
TEST(B4Frozen, PrefixesAreLeftAloneInBackward) {
  for (const BackwardPrefetch prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(5);
      shard_layers(model, rig.device_mesh(), {.backward_prefetch = prefetch});
      for (const std::size_t frozen : {0, 1, 3}) model.layers[frozen]->weight().requires_grad = false;
      for (int step = 1; step <= 3; ++step) {
        EXPECT_EQ(gathers_in_backward(rig, model), 3);            // c, d, e
        EXPECT_EQ(reduce_scatters(rig.device_mesh()), 3 * step);  // the root, c, e
        for (const Unit* unit : root_of(model).units()) EXPECT_FALSE(unit->storage()->is_unsharded()) << unit->name();
        EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::unsharded_param), 0);
      }
      EXPECT_FALSE(unit_of(*model.layers[3]).storage()->sharded_grad());
      model.layers[1]->weight().requires_grad = true;
      EXPECT_EQ(gathers_in_backward(rig, model), 4);
      EXPECT_EQ(reduce_scatters(rig.device_mesh()), 9 + 4);
    });
  }
}

}  // namespace
}  // namespace mica::fsdp::testing
