#include "mica/optim/state_dict.hpp"

#include <cmath>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/optim/fsdp_reference.hpp"
#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::fsdp_reference;
using test::ReferenceRank;
using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

Values values_of(const fsdp::StateTensor& tensor) {
  return {tensor.view().as<float>(), tensor.view().as<float>() + tensor.numel()};
}

/// Odd sizes in two dims; b has fewer elements than ranks; d is frozen.
std::vector<std::vector<test::WeightSpec>> units() {
  return {{{"a", Shape{5, 3}, true, Values(15, 1)}, {"b", Shape{1}, false, Values(1, 2)}},
          {{"c", Shape{7, 2}, true, Values(14, 3)}, {"d", Shape{3}, false, Values(3, 4)}}};
}
/// The same parameters, all in one unit.
std::vector<std::vector<test::WeightSpec>> one_unit() {
  return {{{"a", Shape{5, 3}, true, Values(15, 1)}, {"b", Shape{1}, false, Values(1, 2)},
           {"c", Shape{7, 2}, true, Values(14, 3)}, {"d", Shape{3}, false, Values(3, 4)}}};
}

/// Gradients that name the parameter and the element, whatever the unit.
void set_grads(ShardedWeights& model, int step) {
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) {
      w.grad.clear();
      for (std::int64_t i = 0; i < w.parameter->shape.numel(); ++i) {
        w.grad.push_back(static_cast<float>((w.parameter->name[0] - 'a' + 1) * 16 + i + step));
      }
    }
  }
}
void freeze_d(ShardedWeights& model) {
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) w.parameter->requires_grad = w.parameter->name != "d";
  }
}
void train_step(ShardedWeights& model, Optimizer& optimizer, int step) {
  set_grads(model, step);
  model.pass();
  optimizer.step({.lr = 0.125});
  model.root().zero_grad();
}

using Make = std::function<std::unique_ptr<Optimizer>(fsdp::Root&)>;
std::unique_ptr<Optimizer> adamw(fsdp::Root& root) { return make_adamw(root, {}); }
std::unique_ptr<Optimizer> momentum(fsdp::Root& root) { return make_sgd(root, {.momentum = 0.5}); }

struct Mesh2D {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded{};
};
ShardedOptions options_of(const Mesh2D& mesh) {
  ShardedOptions options{.shard_size = mesh.shard_size, .unsharded = mesh.unsharded};
  options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  return options;
}

/// The full state after two steps on a mesh, as its rank 0 got it; tensors live on.
OptimStateDict trained(const Mesh2D& mesh, const Make& make, int steps = 2) {
  OptimStateDict found;
  run_local_ranks(mesh.num_ranks, [&](auto world) {
    const int rank = world->rank();
    ShardedWeights model(std::move(world), units(), options_of(mesh));
    freeze_d(model);
    const auto optimizer = make(model.root());
    for (int t = 1; t <= steps; ++t) train_step(model, *optimizer, t);
    OptimStateDict full = full_optim_state_dict(*optimizer);
    EXPECT_EQ(full.empty(), rank != 0);
    if (rank == 0) found = std::move(full);
  });
  return found;
}

class OnMeshes : public testing::TestWithParam<Mesh2D> {};

// E3: full. exp_avg after two steps with gradients g and g + 1: 0.9 * 0.1 * g + 0.1 * (g + 1).
TEST_P(OnMeshes, FullHasEveryParameterWholeUnderItsName) {
  const OptimStateDict full = trained(GetParam(), adamw);
  ASSERT_THAT(full.state, SizeIs(3)) << "a, b and c: the frozen one has no state";
  const ParameterState& a = full.state.at("u0.a");
  EXPECT_THAT(a.tensors, SizeIs(2));
  EXPECT_EQ(a.scalars, (std::map<std::string, double>{{"step", 2}}));
  const fsdp::StateTensor& exp_avg = a.tensors.at("exp_avg");
  EXPECT_EQ(exp_avg.shape(), (Shape{5, 3}));
  EXPECT_TRUE(exp_avg.is_on_host());
  for (int i = 0; i < 15; ++i) {
    const float g = 16.0F + static_cast<float>(i) + 1;
    EXPECT_NEAR(values_of(exp_avg)[static_cast<std::size_t>(i)], 0.09F * g + 0.1F * (g + 1), 1e-5) << i;
  }
  EXPECT_EQ(full.state.at("u0.b").tensors.at("exp_avg_sq").shape(), Shape{1});
  EXPECT_EQ(full.state.at("u1.c").tensors.at("exp_avg").shape(), (Shape{7, 2}));
  ASSERT_THAT(full.groups, SizeIs(1));
  EXPECT_THAT(full.groups[0].parameters, ElementsAre(ParameterKey("u0.a"), ParameterKey("u0.b"), ParameterKey("u1.c"), ParameterKey("u1.d")));
  EXPECT_EQ(full.groups[0].options.at("beta2"), 0.95);
}

// E3: sharded without traffic, and the run goes on as if nothing had been.
TEST_P(OnMeshes, ShardedFromAFullStateOnEveryRank) {
  for (const Make& make : {Make(adamw), Make(momentum)}) {
    const OptimStateDict full = trained(GetParam(), make);
    run_local_ranks(GetParam().num_ranks, [&](auto world) {
      ShardedWeights model(world->duplicate("a"), units(), options_of(GetParam()));
      ShardedWeights resumed(std::move(world), units(), options_of(GetParam()));
      freeze_d(model);
      freeze_d(resumed);
      const auto optimizer = make(model.root()), loaded = make(resumed.root());
      for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t);
      for (const char* name : {"u0.a", "u0.b", "u1.c"}) resumed.write_master(name, model.gather(name));
      for (ProcessGroup* group : {&resumed.device_mesh().mesh().shard(), &resumed.device_mesh().metrics_group()}) group->reset_counts();
      const OptimStateDict local = shard_full_optim_state_dict(full, *loaded);
      load_optim_state_dict(*loaded, local);
      for (ProcessGroup* group : {&resumed.device_mesh().mesh().shard(), &resumed.device_mesh().metrics_group()}) {
        for (const Collective kind : {Collective::all_gather, Collective::all_reduce, Collective::broadcast}) {
          EXPECT_EQ(group->counts().of(kind), 0);
        }
      }
      std::int64_t numel = 0;
      for (const fsdp::ShardedParameter& p : resumed.root().parameters()) {
        if (p.piece.parameter == "u0.a") numel = p.piece.numel();
      }
      const auto& tensors = local.state.at("u0.a").tensors;
      EXPECT_EQ(tensors.empty() ? 0 : tensors.begin()->second.numel(), numel) << "this rank's piece alone";
      train_step(model, *optimizer, 3);
      train_step(resumed, *loaded, 3);
      for (const char* name : {"u0.a", "u0.b", "u1.c", "u1.d"}) EXPECT_EQ(resumed.gather(name), model.gather(name)) << name;
      EXPECT_EQ(loaded->steps_of("u0.a"), make(model.root())->counts_steps() ? 3 : 2);
    });
  }
}

// E3: scattered from rank 0.
TEST_P(OnMeshes, ScatteredFromRankZero) {
  const OptimStateDict full = trained(GetParam(), adamw);
  run_local_ranks(GetParam().num_ranks, [&](auto world) {
    const int rank = world->rank();
    ShardedWeights model(std::move(world), units(), options_of(GetParam()));
    const auto optimizer = make_adamw(model.root(), {});
    const OptimStateDict local = scatter_full_optim_state_dict(rank == 0 ? &full : nullptr, *optimizer);
    const OptimStateDict expected = shard_full_optim_state_dict(full, *optimizer);
    ASSERT_EQ(local.state.size(), expected.state.size());
    for (const auto& [key, state] : expected.state) {
      EXPECT_EQ(local.state.at(key).scalars, state.scalars);
      ASSERT_EQ(local.state.at(key).tensors.size(), state.tensors.size());
      for (const auto& [kind, tensor] : state.tensors) EXPECT_EQ(values_of(local.state.at(key).tensors.at(kind)), values_of(tensor));
    }
    ASSERT_THAT(local.groups, SizeIs(1));
    EXPECT_EQ(local.groups[0].parameters, full.groups[0].parameters);
    EXPECT_EQ(local.groups[0].options, full.groups[0].options);
    const std::string error = error_of([&] { static_cast<void>(scatter_full_optim_state_dict(nullptr, *optimizer)); });
    EXPECT_THAT(error, HasSubstr("scatter_full_optim_state_dict has no full state here")) << "on every rank";
  });
}

// E3, E2: rows rank * ceil(d0 / S) on, none past the end; back into pieces of another wrapping.
TEST_P(OnMeshes, ShardedByRowsAndBack) {
  const OptimStateDict full = trained(GetParam(), adamw);
  run_local_ranks(GetParam().num_ranks, [&](auto world) {
    ShardedWeights model(std::move(world), units(), options_of(GetParam()));
    freeze_d(model);
    const auto optimizer = make_adamw(model.root(), {});
    for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t);
    const OptimStateDict sharded = sharded_optim_state_dict(*optimizer);
    ASSERT_THAT(sharded.state, SizeIs(3));
    const int shard_size = GetParam().shard_size, shard_rank = model.device_mesh().mesh().shard_rank();
    const std::int64_t rows = (5 + shard_size - 1) / shard_size, begin = std::min<std::int64_t>(5, rows * shard_rank);
    const fsdp::StateTensor& mine = sharded.state.at("u0.a").tensors.at("exp_avg");
    EXPECT_EQ(mine.shape(), (Shape{std::min<std::int64_t>(5, begin + rows) - begin, 3}));
    EXPECT_EQ(mine.row_begin(), begin);
    EXPECT_EQ(mine.global_shape(), (Shape{5, 3}));
    const Values whole = values_of(full.state.at("u0.a").tensors.at("exp_avg")), part = values_of(mine);
    for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[static_cast<std::size_t>(begin) * 3 + i]);
    EXPECT_EQ(sharded.state.at("u0.b").tensors.at("exp_avg").shape()[0], shard_rank == 0 ? 1 : 0);

    const OptimStateDict local = local_from_sharded_optim_state_dict(sharded, *optimizer);
    const OptimStateDict expected = shard_full_optim_state_dict(full, *optimizer);
    for (const auto& [key, state] : expected.state) {
      EXPECT_EQ(local.state.at(key).scalars, state.scalars);
      ASSERT_EQ(local.state.at(key).tensors.size(), state.tensors.size());
      for (const auto& [kind, tensor] : state.tensors) EXPECT_EQ(values_of(local.state.at(key).tensors.at(kind)), values_of(tensor));
    }
    OptimStateDict wrong = sharded;
    if (shard_rank == 0) wrong.state.at("u0.a").tensors["exp_avg"] = fsdp::StateTensor::on_host({1, 3}, DType::f32);
    EXPECT_THAT(error_of([&] { static_cast<void>(local_from_sharded_optim_state_dict(wrong, *optimizer)); }),
                HasSubstr("exp_avg of parameter u0.a has rows [1, 3]")) << "on every rank";
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, OnMeshes,
                         testing::Values(Mesh2D{1, 1}, Mesh2D{2, 2}, Mesh2D{3, 3}, Mesh2D{4, 2}, Mesh2D{2, 2, {1}}));

// E3: the same whole tensors however parameters are cut (C4), and back into pieces of that kind.
TEST(OptimStateDict, DoesNotDependOnTheSharding) {
  const OptimStateDict full = trained({1, 1}, adamw);
  std::vector<fsdp::Options> all(3);
  all[0].sharding = fsdp::Sharding::per_parameter;
  all[1].sharding = fsdp::Sharding::per_parameter;
  all[1].shard_dims = {{"u0.a", 1}};  // [5, 3]: a column each
  all[2].cpu_offload = fsdp::CpuOffload::parameters;
  for (const fsdp::Options& each : all) {
    run_local_ranks(3, [&](auto world) {
      ShardedOptions options;
      options.fsdp = each;
      ShardedWeights model(world->duplicate("a"), units(), options), resumed(std::move(world), units(), options);
      freeze_d(model);
      freeze_d(resumed);
      const auto optimizer = make_adamw(model.root(), {}), loaded = make_adamw(resumed.root(), {});
      for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t);
      load_optim_state_dict(*loaded, shard_full_optim_state_dict(full, *loaded));
      for (const Optimizer* one : {optimizer.get(), loaded.get()}) {
        const OptimStateDict found = full_optim_state_dict(*one, false);
        ASSERT_EQ(found.state.size(), full.state.size());
        for (const auto& [key, state] : full.state) {
          for (const auto& [kind, tensor] : state.tensors) {
            const Values expected = values_of(tensor), values = values_of(found.state.at(key).tensors.at(kind));
            ASSERT_EQ(values.size(), expected.size());
            for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-5 * std::abs(expected[i])) << i;
          }
        }
      }
    });
  }
}

// E3: a parameter outside units is stepped whole on every rank, and its state included, on the host.
TEST(OptimStateDict, IncludesParametersOutsideUnits) {
  const OptimStateDict inside = trained({1, 1}, adamw);
  run_local_ranks(2, [&](auto world) {
    const int rank = world->rank();
    const ShardedOptions options{.ignores_first = true};
    ShardedWeights model(world->duplicate("a"), units(), options), resumed(std::move(world), units(), options);
    const auto first = [](ShardedWeights& m) {
      const nn::Parameter& p = *m.weight(0, 0).parameter;
      return Values(p.data.as<float>(), p.data.as<float>() + p.shape.numel());
    };
    freeze_d(model);
    freeze_d(resumed);
    ASSERT_EQ(model.root().ignored_parameters().size(), 1U);
    const auto optimizer = make_adamw(model.root(), {}), loaded = make_adamw(resumed.root(), {});
    const auto step = [](ShardedWeights& m, Optimizer& o, int t) {
      m.weight(0, 0).parameter->grad_written = false;
      train_step(m, o, t);
    };
    for (int t = 1; t <= 2; ++t) step(model, *optimizer, t);
    EXPECT_NE(first(model), Values(15, 1));
    EXPECT_EQ(optimizer->ignored_state().size(), 2U);
    const OptimStateDict full = full_optim_state_dict(*optimizer);
    EXPECT_EQ(full.empty(), rank != 0);
    if (rank == 0) {
      ASSERT_THAT(full.state, SizeIs(3));
      const fsdp::StateTensor& exp_avg = full.state.at("u0.a").tensors.at("exp_avg");
      EXPECT_TRUE(exp_avg.is_on_host());
      EXPECT_EQ(exp_avg.shape(), (Shape{5, 3}));
      EXPECT_EQ(values_of(exp_avg), values_of(inside.state.at("u0.a").tensors.at("exp_avg")));
      EXPECT_THAT(full.groups[0].parameters, testing::Contains(ParameterKey("u0.a")));
    }
    load_optim_state_dict(*loaded, scatter_full_optim_state_dict(rank == 0 ? &full : nullptr, *loaded));
    for (const char* name : {"u0.b", "u1.c"}) resumed.write_master(name, model.gather(name));
    std::ranges::copy(first(model), resumed.weight(0, 0).parameter->data.as<float>());
    step(model, *optimizer, 3);
    step(resumed, *loaded, 3);
    EXPECT_EQ(first(resumed), first(model));
    EXPECT_EQ(loaded->steps_of("u0.a"), 3);
    EXPECT_EQ(resumed.gather("u1.c"), model.gather("u1.c"));
    // Rows and back.
    const OptimStateDict local = local_from_sharded_optim_state_dict(sharded_optim_state_dict(*optimizer), *optimizer);
    EXPECT_EQ(local.state.at("u0.a").tensors.at("exp_avg").numel(), 15);
    load_optim_state_dict(*loaded, local);
    step(model, *optimizer, 4);
    step(resumed, *loaded, 4);
    EXPECT_EQ(first(resumed), first(model));
  });
}

/// u0.a of two units is u0.a of one; u1.c is u0.c there.
OptimStateDict renamed_for_one_unit(const OptimStateDict& full) {
  OptimStateDict dict = full;
  auto c = dict.state.extract("u1.c");
  c.key() = "u0.c";
  dict.state.insert(std::move(c));
  dict.groups.clear();
  return dict;
}

// E3: half the world, another wrapping.
TEST(OptimStateDict, LoadsAtHalfTheWorldWithAnotherWrapping) {
  const OptimStateDict full = trained({4, 4}, adamw), other = renamed_for_one_unit(full);
  run_local_ranks(2, [&](auto world) {
    const int rank = world->rank();
    ShardedWeights model(std::move(world), one_unit());
    freeze_d(model);
    const auto optimizer = make_adamw(model.root(), {});
    load_optim_state_dict(*optimizer, scatter_full_optim_state_dict(rank == 0 ? &other : nullptr, *optimizer));
    const OptimStateDict again = full_optim_state_dict(*optimizer, false);
    ASSERT_THAT(again.state, SizeIs(3));
    for (const auto& [key, state] : other.state) {
      EXPECT_EQ(again.state.at(key).scalars, state.scalars);
      for (const auto& [kind, tensor] : state.tensors) {
        EXPECT_EQ(values_of(again.state.at(key).tensors.at(kind)), values_of(tensor));
        EXPECT_EQ(again.state.at(key).tensors.at(kind).shape(), tensor.shape());
      }
    }
    EXPECT_EQ(optimizer->num_steps(), 2);
  });
}

// E3: no step, no state; plain SGD has none at all.
TEST(OptimStateDict, ParametersWithoutStateAreOmitted) {
  EXPECT_THAT(trained({2, 2}, adamw, 0).state, IsEmpty());
  const OptimStateDict sgd = trained({2, 2}, [](fsdp::Root& root) { return make_sgd(root, {}); });
  EXPECT_THAT(sgd.state, IsEmpty());
  EXPECT_THAT(sgd.groups, SizeIs(1));
}

/// Two groups: c and a, then b; d is in none.
std::vector<ParamGroup> two_groups() {
  return {{.parameters = {"u1.c", "u0.a"}}, {.parameters = {"u0.b"}, .lr_factor = 0.5}};
}

// E3: ids count through the groups: c 0, a 1, b 2.
TEST(OptimStateDict, KeysByNameOrByIdAndBack) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), units());
    const auto optimizer = make_adamw(model.root(), {}, two_groups());
    train_step(model, *optimizer, 1);
    const OptimStateDict named = full_optim_state_dict(*optimizer, false);
    EXPECT_THAT(named.state, SizeIs(3));
    EXPECT_EQ(named.groups[1].options.at("lr_factor"), 0.5);
    const OptimStateDict ids = rekey_optim_state_dict(named, KeyKind::id, *optimizer);
    std::vector<ParameterKey> keys;
    for (const auto& [key, state] : ids.state) keys.push_back(key);
    EXPECT_THAT(keys, ElementsAre(ParameterKey(0), ParameterKey(1), ParameterKey(2)));
    EXPECT_EQ(ids.state.at(0).tensors.at("exp_avg").shape(), (Shape{7, 2}));
    EXPECT_THAT(ids.groups[0].parameters, ElementsAre(ParameterKey(0), ParameterKey(1)));
    EXPECT_THAT(ids.groups[1].parameters, ElementsAre(ParameterKey(2)));
    const OptimStateDict back = rekey_optim_state_dict(ids, KeyKind::name, *optimizer);
    EXPECT_THAT(back.groups[0].parameters, ElementsAre(ParameterKey("u0.a"), ParameterKey("u1.c"))) << "sorted";
    EXPECT_EQ(back.state.at("u1.c").scalars, named.state.at("u1.c").scalars);
    // Already right: unchanged, the order of a group as well.
    const OptimStateDict same = rekey_optim_state_dict(named, KeyKind::name, *optimizer);
    EXPECT_THAT(same.groups[0].parameters, ElementsAre(ParameterKey("u1.c"), ParameterKey("u0.a")));
    // Ids are loaded as well as names.
    ShardedWeights fresh_model(model.device_mesh().mesh().world().duplicate("fresh"), units());
    const auto fresh = make_adamw(fresh_model.root(), {}, two_groups());
    load_optim_state_dict(*fresh, shard_full_optim_state_dict(ids, *fresh));
    EXPECT_EQ(values_of(full_optim_state_dict(*fresh, false).state.at("u1.c").tensors.at("exp_avg")),
              values_of(named.state.at("u1.c").tensors.at("exp_avg")));
  });
}

// E3: mixed kinds are an error; parameters that are not the optimizer's are dropped.
TEST(OptimStateDict, KeysOfBothKindsOrOfOthers) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), units());
    const auto optimizer = make_adamw(model.root(), {}, two_groups());
    OptimStateDict mixed;
    mixed.state["u0.a"];
    mixed.state[3];
    EXPECT_THAT(error_of([&] { static_cast<void>(rekey_optim_state_dict(mixed, KeyKind::id, *optimizer)); }),
                HasSubstr("has 1 keys that are names and 1 that are ids"));
    OptimStateDict more;
    more.state["u0.a"];
    more.state["gone.weight"];
    more.groups = {{{"u1.d", "u0.a"}, {}}};
    const OptimStateDict ids = rekey_optim_state_dict(more, KeyKind::id, *optimizer);
    EXPECT_THAT(ids.state, SizeIs(1));
    EXPECT_THAT(ids.groups[0].parameters, ElementsAre(ParameterKey(1)));
  });
}

TEST(OptimStateDict, WhatDoesNotFitIsNamedAndNothingChanges) {
  const OptimStateDict full = trained({1, 1}, adamw), sgd = trained({1, 1}, momentum);
  run_local_ranks(2, [&](auto world) {
    const bool has_a = world->rank() == 0;  // the 65 elements of u0 (with their gap) are cut behind a
    ShardedWeights model(std::move(world), units());
    const auto optimizer = make_adamw(model.root(), {});
    train_step(model, *optimizer, 1);
    const Values before = values_of(full_optim_state_dict(*optimizer, false).state.at("u0.a").tensors.at("exp_avg"));
    const auto refused = [&](const std::function<void(OptimStateDict&)>& change, bool local = false) {
      OptimStateDict dict = local ? shard_full_optim_state_dict(full, *optimizer) : full;
      change(dict);
      return error_of([&] { load_optim_state_dict(*optimizer, local ? dict : shard_full_optim_state_dict(dict, *optimizer)); });
    };
    EXPECT_THAT(refused([](auto& d) { d.state["gone"] = d.state.at("u0.a"); }), HasSubstr("state of gone, which is no parameter"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").tensors["exp_avg"] = fsdp::StateTensor::on_host({3, 5}, DType::f32); }),
                HasSubstr("exp_avg of parameter u0.a is fp32 [3, 5] in the state dict, expected fp32 [5, 3]"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").scalars.clear(); }), HasSubstr("no step of parameter u0.a"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").scalars["step"] = 1.5; }), HasSubstr("step 1.5 of parameter u0.a"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").tensors.erase("exp_avg"); }), HasSubstr("no exp_avg of parameter u0.a"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").tensors["exp_avg"] = fsdp::StateTensor::on_host({4}, DType::f32); }, true),
                HasSubstr(has_a ? "has shape [4] in the state dict" : ""));
    EXPECT_THAT(error_of([&] { load_optim_state_dict(*optimizer, shard_full_optim_state_dict(sgd, *optimizer)); }),
                HasSubstr("momentum_buffer of parameter"));
    EXPECT_EQ(values_of(full_optim_state_dict(*optimizer, false).state.at("u0.a").tensors.at("exp_avg")), before);
    fsdp::BackwardPass pass(model.root());
    EXPECT_THAT(error_of([&] { static_cast<void>(full_optim_state_dict(*optimizer)); }), HasSubstr("while the root is in backward"));
    pass.finish();
  });
}

// E3: PyTorch's keys, kinds, shapes and groups. body.extra, which is never called, shares the root's flat parameter: in
// PyTorch it has zero gradients, as here without original-parameter mode; with it Mica leaves it out.
TEST(FsdpReference, OptimizerStateDictKeys) {
  for (const nlohmann::json& reference : fsdp_reference()["optim"]) {
    for (const bool original : {false, true}) {
      const auto frozen = reference["frozen"].get<std::vector<std::string>>();
      if (!original && !frozen.empty()) continue;  // one unit with frozen and trainable parameters: refused (B4)
      run_local_ranks(2, [&](auto world) {
        ReferenceRank rank(std::move(world), {.options = {.use_orig_params = original}, .frozen = frozen});
        std::vector<ParamGroup> groups;
        for (const nlohmann::json& group : reference["groups"]) groups.push_back({.parameters = group.get<std::vector<std::string>>()});
        const std::string kind = reference["kind"].get<std::string>();
        const auto optimizer = kind == "adam" ? make_adamw(rank.root(), {}, groups)
                                              : make_sgd(rank.root(), {.momentum = kind == "momentum" ? 0.9 : 0.0}, groups);
        for (std::size_t step = 0; step < 3; ++step) {
          rank.pass(step, rank.rank());
          optimizer->step({.lr = 0.01});
          rank.root().zero_grad();
        }
        const OptimStateDict full = full_optim_state_dict(*optimizer, false);
        const OptimStateDict ids = rekey_optim_state_dict(full, KeyKind::id, *optimizer);
        std::size_t num_expected = 0;
        for (const auto& [name, kinds] : reference["state"].items()) {
          if (original && name.find("extra") != std::string::npos) {
            EXPECT_FALSE(full.state.contains(name));
            continue;
          }
          ++num_expected;
          ASSERT_TRUE(full.state.contains(name)) << name;
          const ParameterState& state = full.state.at(name);
          EXPECT_EQ(state.tensors.size() + state.scalars.size(), kinds.size()) << name;
          for (const auto& [each, value] : kinds.items()) {
            if (value.is_number()) {
              EXPECT_EQ(state.scalars.at(each), value.template get<double>()) << name << " " << each;
            } else {
              const auto dims = value.template get<std::vector<std::int64_t>>();
              EXPECT_EQ(state.tensors.at(each).shape(), Shape(std::span(dims))) << name << " " << each;
            }
          }
        }
        EXPECT_EQ(full.state.size(), num_expected);
        for (std::size_t g = 0; g < groups.size(); ++g) {
          std::vector<ParameterKey> names;
          for (const nlohmann::json& name : reference["groups"][g]) names.emplace_back(name.get<std::string>());
          EXPECT_EQ(full.groups[g].parameters, names);
          if (reference["id_groups"][g][0].is_string()) continue;  // without any state PyTorch leaves the names
          std::vector<ParameterKey> numbers;
          for (const nlohmann::json& id : reference["id_groups"][g]) numbers.emplace_back(id.get<std::int64_t>());
          EXPECT_EQ(ids.groups[g].parameters, numbers);
        }
        for (const nlohmann::json& id : reference["ids"]) EXPECT_TRUE(original || ids.state.contains(id.get<std::int64_t>())) << id;
      });
    }
  }
}

}  // namespace
}  // namespace mica::optim
