// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/state_dict.hpp"

#include <cmath>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/optim/trained_state.hpp"

namespace mica::optim {
namespace {

using namespace state_dicts;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OnMeshes : public ::testing::TestWithParam<Mesh2D> {};

// E3: full. exp_avg after two steps with gradients g and g + 1: 0.9 * 0.1 * g + 0.1 * (g + 1).
TEST_P(OnMeshes, E3_FullHasEveryParameterWholeUnderItsName) {
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
  EXPECT_THAT(full.groups[0].parameters,
              ElementsAre(ParameterKey("u0.a"), ParameterKey("u0.b"), ParameterKey("u1.c"), ParameterKey("u1.d")));
  EXPECT_EQ(full.groups[0].options.at("beta2"), 0.95);
}

// E3: sharded without traffic, and the run goes on as if nothing had been.
TEST_P(OnMeshes, E3_ShardedFromAFullStateOnEveryRank) {
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
      for (const fsdp::Piece& p : resumed.root().pieces()) {
        if (resumed.root().parameter(p).full_name == "u0.a") numel = p.numel();
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
TEST_P(OnMeshes, E3_ScatteredFromRankZero) {
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
TEST_P(OnMeshes, E3_ShardedByRowsAndBack) {
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
                HasSubstr("exp_avg of parameter u0.a has rows [1, 3]"))
        << "on every rank";
  });
}

void expect_same(const OptimStateDict& found, const OptimStateDict& expected) {
  ASSERT_EQ(found.state.size(), expected.state.size());
  for (const auto& [key, state] : expected.state) {
    EXPECT_EQ(found.state.at(key).scalars, state.scalars);
    ASSERT_EQ(found.state.at(key).tensors.size(), state.tensors.size());
    for (const auto& [kind, tensor] : state.tensors) {
      const fsdp::StateTensor& other = found.state.at(key).tensors.at(kind);
      EXPECT_EQ(other.shape(), tensor.shape());
      EXPECT_EQ(other.row_begin(), tensor.row_begin());
      EXPECT_EQ(values_of(other), values_of(tensor));
    }
  }
  ASSERT_EQ(found.groups.size(), expected.groups.size());
  for (std::size_t i = 0; i < expected.groups.size(); ++i) EXPECT_EQ(found.groups[i].parameters, expected.groups[i].parameters);
}

// E2, E3: the settings' kind and optimizer config decide which state dict an optimizer gives.
TEST_P(OnMeshes, E3_GoesByTheStateDictSettings) {
  run_local_ranks(GetParam().num_ranks, [&](auto world) {
    const int rank = world->rank();
    ShardedWeights model(std::move(world), units(), options_of(GetParam()));
    freeze_d(model);
    const auto optimizer = make_adamw(model.root(), {});
    for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t);
    const OptimStateDict full = full_optim_state_dict(*optimizer, false);
    ASSERT_THAT(full.state, SizeIs(3));
    EXPECT_EQ(optim_state_dict(*optimizer).empty(), rank != 0) << "full, on rank 0 only: the default";
    {
      const fsdp::StateDictSettingsScope scope(model.model(), {.optim = fsdp::FullOptimStateDictConfig{.rank0_only = false}});
      expect_same(optim_state_dict(*optimizer), full);
    }
    {
      const fsdp::StateDictSettingsScope scope(model.model(), fsdp::StateDictSettings::of(fsdp::StateDictKind::sharded));
      expect_same(optim_state_dict(*optimizer), sharded_optim_state_dict(*optimizer));
    }
    {
      const fsdp::StateDictSettingsScope scope(model.model(), fsdp::StateDictSettings::of(fsdp::StateDictKind::local));
      expect_same(optim_state_dict(*optimizer), shard_full_optim_state_dict(full, *optimizer));
    }
    EXPECT_EQ(optim_state_dict(*optimizer).empty(), rank != 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, OnMeshes, ::testing::Values(Mesh2D{1, 1}, Mesh2D{2, 2}, Mesh2D{3, 3}, Mesh2D{4, 2}, Mesh2D{2, 2, {1}}));

// E3: the same whole tensors however parameters are cut (C4), and back into pieces of that kind.
TEST(OptimStateDict, E3_DoesNotDependOnTheSharding) {
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
TEST(OptimStateDict, E3_IncludesParametersOutsideUnits) {
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
      EXPECT_THAT(full.groups[0].parameters, ::testing::Contains(ParameterKey("u0.a")));
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

// A rank that keeps nothing of a parameter waits, too, for what it sends.
TEST(OptimStateDict, MayBeOverwrittenOnceItWasConverted) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), {{{"c", Shape{4}, true, {}}}}, {.mode = StreamMode::threaded});  // on rank 0
    const auto optimizer = make_adamw(model.root(), {});
    train_step(model, *optimizer, 1);
    OptimStateDict rows = sharded_optim_state_dict(*optimizer);
    const auto local = [&] { return local_from_sharded_optim_state_dict(rows, *optimizer); };
    const OptimStateDict undisturbed = local();
    model.device_mesh().compute().submit("late", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    const OptimStateDict late = local();
    for (auto& [kind, tensor] : rows.state.at("u0.c").tensors) {
      std::fill_n(tensor.view().template as<float>(), tensor.numel(), -1.0F);
    }
    model.device_mesh().compute().synchronize();
    for (const auto& [key, state] : undisturbed.state) {
      for (const auto& [kind, tensor] : state.tensors) {
        EXPECT_EQ(values_of(late.state.at(key).tensors.at(kind)), values_of(tensor)) << kind;
      }
    }
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

// E3: shard ranks gather parameter by parameter, so one that lacks a parameter is named on all of them.
TEST(OptimStateDict, ShardedPartsMustHaveTheSameParameters) {
  for (const std::string missing : {"u0.a", "u0.b", "u1.c"}) {
    for (const int num_ranks : {2, 3}) {
      for (const int without : {0, num_ranks - 1}) {
        run_local_ranks(num_ranks, [&](auto world) {
          ShardedWeights model(std::move(world), units(), options_of({num_ranks, num_ranks}));
          freeze_d(model);
          const auto optimizer = adamw(model.root());
          train_step(model, *optimizer, 1);
          OptimStateDict sharded = sharded_optim_state_dict(*optimizer);
          if (model.device_mesh().mesh().rank() == without) sharded.state.erase(missing);
          EXPECT_THAT(error_of([&] { static_cast<void>(local_from_sharded_optim_state_dict(sharded, *optimizer)); }),
                      HasSubstr(fmt::format("has parameter {} on rank {} of the shard axis and not on rank {}", missing,
                                            without == 0 ? 1 : 0, without)));
        });
      }
    }
  }
}

// E3: a scalar cannot be in a unit, only ignored; it has one row, which every rank has.
TEST(OptimStateDict, IncludesIgnoredScalars) {
  for (const int num_ranks : {1, 2, 3}) {
    run_local_ranks(num_ranks, [](auto world) {
      const std::vector<std::vector<test::WeightSpec>> with_scalar{{{"a", Shape{}, false, Values{5}}, {"b", Shape{3}, true, Values(3, 1)}}};
      ShardedOptions options;
      options.ignores_first = true;
      ShardedWeights model(std::move(world), with_scalar, options);
      const auto optimizer = adamw(model.root());
      train_step(model, *optimizer, 1);
      model.device_mesh().compute().synchronize();
      const IgnoredState exp_avg = optimizer->ignored_state().at(0);
      const float wanted = *exp_avg.data.as<float>();
      EXPECT_NEAR(wanted, 0.1F * 17, 1e-5);
      const auto clear = [&] { model.kernels().fill(model.device_mesh().compute(), exp_avg.data, 0.0); };
      const auto expect_loaded = [&](const OptimStateDict& local) {
        clear();
        load_optim_state_dict(*optimizer, local);
        EXPECT_EQ(*exp_avg.data.as<float>(), wanted);
      };
      const OptimStateDict full = full_optim_state_dict(*optimizer, false);
      EXPECT_EQ(full.state.at("u0.a").tensors.at("exp_avg").shape(), Shape{});
      EXPECT_EQ(values_of(full.state.at("u0.a").tensors.at("exp_avg")), Values{wanted});
      expect_loaded(full);
      expect_loaded(shard_full_optim_state_dict(full, *optimizer));
      expect_loaded(scatter_full_optim_state_dict(&full, *optimizer));
      const OptimStateDict sharded = sharded_optim_state_dict(*optimizer);
      EXPECT_EQ(values_of(sharded.state.at("u0.a").tensors.at("exp_avg")), Values{wanted});
      expect_loaded(local_from_sharded_optim_state_dict(sharded, *optimizer));
    });
  }
}

// E3: half the world, another wrapping.
TEST(OptimStateDict, E3_LoadsAtHalfTheWorldWithAnotherWrapping) {
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

// There is no place for its state, and moments that begin at zero later must not count the steps that they have not seen.
TEST(OptimStateDict, WhatIsFrozenWhenItIsLoadedCountsFromZero) {
  const OptimStateDict full = trained({2, 2}, adamw);
  run_local_ranks(2, [&](auto world) {
    ShardedWeights model(std::move(world), units(), options_of({2, 2}));
    for (test::Weights* part : model.model().parts()) {
      for (test::Weights::Weight& w : part->weights()) w.parameter->requires_grad = w.parameter->name < "c";
    }
    const auto optimizer = adamw(model.root());
    load_optim_state_dict(*optimizer, shard_full_optim_state_dict(full, *optimizer));
    EXPECT_EQ(optimizer->steps_of("u0.a"), 2);
    EXPECT_EQ(optimizer->steps_of("u1.c"), 0);
  });
}

// E3: no step, no state; plain SGD has none at all.
TEST(OptimStateDict, E3_ParametersWithoutStateAreOmitted) {
  EXPECT_THAT(trained({2, 2}, adamw, 0).state, IsEmpty());
  const OptimStateDict sgd = trained({2, 2}, [](fsdp::Root& root) { return make_sgd(root, {}); });
  EXPECT_THAT(sgd.state, IsEmpty());
  EXPECT_THAT(sgd.groups, SizeIs(1));
}

/// Two groups: c and a, then b; d is in none.
}  // namespace
}  // namespace mica::optim
