// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/optimizer_in_backward.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/fsdp/deterministic.hpp"

#include "testing/checking_stream.hpp"
#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;
using ::testing::HasSubstr;

/// Four units of different sizes; the last has fewer elements than ranks.
std::vector<std::vector<test::WeightSpec>> units() {
  return {{{"a", Shape{64}, true, Values(64, 1)}, {"b", Shape{3}, false, Values(3, 2)}},
          {{"c", Shape{37}, true, Values(37, 3)}},
          {{"d", Shape{5, 5}, true, Values(25, 4)}, {"e", Shape{7}, false, Values(7, 5)}},
          {{"f", Shape{1}, false, Values(1, 6)}}};
}
const std::vector<std::string> kNames{"u0.a", "u0.b", "u1.c", "u2.d", "u2.e", "u3.f"};

void set_grads(ShardedWeights& model, int step) {
  float next = 0.1F * static_cast<float>(step);
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) {
      w.grad.clear();
      for (std::int64_t i = 0; i < w.parameter->shape.numel(); ++i) w.grad.push_back(std::sin(next += 0.7F));
    }
  }
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

struct Case {
  int num_ranks;
  int shard_size;
  StreamMode mode;
  bool use_orig_params;
};
class InBackward : public ::testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static ShardedOptions options() {
    ShardedOptions options{.mode = GetParam().mode, .shard_size = GetParam().shard_size};
    options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    options.fsdp.root = fsdp::RootOptions{.use_orig_params = GetParam().use_orig_params};
    return options;
  }
};

using Make = std::function<std::unique_ptr<Optimizer>(fsdp::Root&)>;
std::vector<Make> all_optimizers() {
  return {[](fsdp::Root& root) { return make_adamw(root, {}); }, [](fsdp::Root& root) { return make_adamw(root, {.decoupled = false}); },
          [](fsdp::Root& root) { return make_sgd(root, {.momentum = 0.9, .nesterov = true}); }};
}

// D10: the same bits as stepping after backward; every gradient is gone when backward ends.
TEST_P(InBackward, D10_GivesTheBitsOfAStepAfterBackwardAndKeepsNoGradient) {
  for (const Make& make : all_optimizers()) {
    run_local_ranks(GetParam().num_ranks, [&](auto world) {
      ShardedWeights model(world->duplicate("a"), units(), options());
      ShardedWeights plain(std::move(world), units(), options());
      const auto optimizer = make(model.root()), plain_optimizer = make(plain.root());
      OptimizerInBackward in_backward(*optimizer);
      for (int step = 1; step <= 4; ++step) {
        const double lr = 0.1 / step;
        const bool skips = step == 3;  // a parameter and a whole unit without gradient
        for (ShardedWeights* each : {&model, &plain}) {
          set_grads(*each, step);
          each->weight(0, 1).has_grad = !skips;
        }
        const std::vector<bool> with_grad{true, !skips, true, true};
        in_backward.begin_step(lr);
        model.pass(with_grad);
        EXPECT_EQ(model.pool().stats().current_of(MemoryRole::sharded_grad), 0);
        plain.pass(with_grad);
        plain_optimizer->step({.lr = lr});
        plain.root().zero_grad();
      }
      for (const std::string& name : kNames) EXPECT_EQ(model.gather(name), plain.gather(name)) << name;
      EXPECT_EQ(optimizer->num_steps(), 4);
      EXPECT_EQ(optimizer->parameter_steps(), plain_optimizer->parameter_steps());
      EXPECT_EQ(optimizer->steps_of("u1.c"), 3);
    });
  }
}

// D10: accumulation under no_sync steps once, in the synchronising backward.
TEST_P(InBackward, D10_AccumulatesUnderNoSync) {
  run_local_ranks(GetParam().num_ranks, [&](auto world) {
    ShardedWeights model(world->duplicate("a"), units(), options());
    ShardedWeights plain(std::move(world), units(), options());
    const auto optimizer = make_sgd(model.root(), {}), plain_optimizer = make_sgd(plain.root(), {});
    OptimizerInBackward in_backward(*optimizer);
    in_backward.begin_step(0.5);
    for (ShardedWeights* each : {&model, &plain}) {
      for (int round = 1; round <= 2; ++round) {
        set_grads(*each, round);
        each->root().set_gradient_sync(round == 2);
        each->pass();
      }
    }
    plain_optimizer->step({.lr = 0.5});
    for (const std::string& name : kNames) EXPECT_EQ(model.gather(name), plain.gather(name)) << name;
  });
}

/// What the modules of all units see of their parameters, in the order of kNames.
std::vector<Values> seen(ShardedWeights& model) {
  for (test::Weights* part : model.model().parts()) dynamic_cast<fsdp::Unit&>(*part->hooks()).unshard().wait();
  std::vector<Values> found;
  for (test::Weights* part : model.model().parts()) {
    for (const test::Weights::Weight& w : part->weights()) {
      Values& values = found.emplace_back(static_cast<std::size_t>(w.parameter->shape.numel()));
      model.kernels().copy(model.device_mesh().compute(), w.parameter->data, {values.data(), w.parameter->shape, DType::f32});
    }
  }
  model.device_mesh().compute().synchronize();
  return found;
}

// D10, D19: what stays unsharded after backward would go stale, so it is given back when it is stepped; a unit that had
// no gradient keeps its parameters, which are those it had.
TEST_P(InBackward, UnitsThatStayUnshardedSeeTheNewParameters) {
  for (const DType param_dtype : {DType::f32, DType::bf16}) {
    run_local_ranks(GetParam().num_ranks, [&](auto world) {
      ShardedOptions low = options();
      low.fsdp.mixed_precision = {.param_dtype = param_dtype, .reduce_dtype = DType::f32};
      ShardedWeights model(world->duplicate("a"), units(), low);
      ShardedWeights plain(std::move(world), units(), low);
      for (fsdp::Unit* unit : model.root().units()) unit->set_reshard_after_backward(false);
      const auto optimizer = make_adamw(model.root(), {}), plain_optimizer = make_adamw(plain.root(), {});
      OptimizerInBackward in_backward(*optimizer);
      for (int step = 1; step <= 3; ++step) {
        for (ShardedWeights* each : {&model, &plain}) set_grads(*each, step);
        const std::vector<bool> with_grad{true, step != 2, true, true};
        in_backward.begin_step(0.1);
        model.pass(with_grad);
        const bool aliases = param_dtype == DType::f32 && GetParam().shard_size == 1;
        if (step == 2 && !aliases) {
          EXPECT_TRUE(model.root().units()[2]->storage()->is_unsharded()) << "u1 has the parameters that it had";
        }
        plain.pass(with_grad);
        plain_optimizer->step({.lr = 0.1});
        plain.root().zero_grad();
        EXPECT_EQ(seen(model), seen(plain)) << "step " << step << ", " << dtype_name(param_dtype);
        model.device_mesh().compute().synchronize();
      }
      for (const std::string& name : kNames) EXPECT_EQ(model.gather(name), plain.gather(name)) << name;
    });
  }
}

// D10: backward's end waits for the steps, on streams that know every access.
TEST_P(InBackward, D10_EveryAccessIsOrdered) {
  run_local_ranks(GetParam().num_ranks, [&](auto world) {
    HappensBeforeChecker checker;
    {
      ShardedOptions checked = options();
      checked.make_stream = [&](std::string name, StreamMode mode) { return checker.wrap(make_cpu_stream(std::move(name), mode)); };
      ShardedWeights model(std::move(world), units(), checked);
      const auto optimizer = make_adamw(model.root(), {.decoupled = false});
      OptimizerInBackward in_backward(*optimizer);
      for (int step = 1; step <= 3; ++step) {
        set_grads(model, step);
        in_backward.begin_step(0.1);
        model.pass();
        for (const fsdp::Piece& p : model.root().pieces()) {  // who comes next on compute
          model.kernels().fill(model.device_mesh().compute(), model.root().write_master(p), 1.0);
        }
        model.device_mesh().compute().synchronize();
      }
    }
    for (const auto& violation : checker.violations()) ADD_FAILURE() << violation.text;
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, InBackward,
                         ::testing::Values(Case{1, 1, StreamMode::inlined, false}, Case{2, 2, StreamMode::threaded, false},
                                           Case{2, 2, StreamMode::threaded, true}, Case{3, 3, StreamMode::inlined, true},
                                           Case{4, 2, StreamMode::threaded, false}, Case{4, 2, StreamMode::threaded, true},
                                           Case{2, 1, StreamMode::inlined, false}));

// D10: the peak is a few units' sharded gradients, not all units'. Eight units of 640 f32 on one rank.
TEST(OptimizerInBackward, D10_HoldsOneShardedGradientAtATime) {
  run_local_ranks(1, [](auto world) {
    std::vector<std::vector<test::WeightSpec>> equal(8, {{"w", Shape{640}, false, Values(640, 1)}});
    ShardedWeights model(std::move(world), equal, {});
    const auto optimizer = make_sgd(model.root(), {});
    const auto peak = [&] {
      set_grads(model, 1);
      model.pool().reset_peak();
      model.pass();
      return model.pool().stats().peak_of(MemoryRole::sharded_grad);
    };
    EXPECT_EQ(peak(), 8 * 640 * 4);
    optimizer->step({.lr = 1});
    model.root().zero_grad();
    OptimizerInBackward in_backward(*optimizer);
    in_backward.begin_step(1);
    EXPECT_EQ(peak(), 640 * 4);
  });
}

// D10
TEST(OptimizerInBackward, D10_MistakesAreNamed) {
  run_local_ranks(1, [](auto world) {
    ShardedOptions options;
    ShardedWeights model(std::move(world), units(), options);
    const auto optimizer = make_sgd(model.root(), {});
    options.fsdp.root = fsdp::RootOptions{.deterministic = true};
    ShardedWeights deterministic(model.device_mesh().mesh().world().duplicate("deterministic"), units(), options);
    const auto deterministic_optimizer = make_sgd(deterministic.root(), {});
    EXPECT_THAT(error_of([&] { OptimizerInBackward one(*deterministic_optimizer); }),
                HasSubstr("the deterministic reduction leaves sums over micro-batches"));
    options.fsdp.root->deterministic = false;
    options.fsdp.strategy = fsdp::Strategy::shard_optim;
    ShardedWeights zero1(model.device_mesh().mesh().world().duplicate("zero1"), units(), options);
    const auto zero1_optimizer = make_sgd(zero1.root(), {});
    EXPECT_THAT(error_of([&] { OptimizerInBackward one(*zero1_optimizer); }), HasSubstr("fsdp.strategy = shard_optim"));
    {
      OptimizerInBackward in_backward(*optimizer);
      EXPECT_THAT(error_of([&] { OptimizerInBackward second(*optimizer); }), HasSubstr("has an optimizer in backward already"));
      set_grads(model, 1);
      EXPECT_THAT(error_of([&] { model.pass(); }), HasSubstr("unit u3 is reduced, but it was stepped in this step already"));
      model.root().abandon_step();
      EXPECT_THAT(error_of([&] { in_backward.begin_step(NAN); }), HasSubstr("the learning rate is nan"));
      in_backward.begin_step(0.5);
      model.pass();
      EXPECT_THAT(error_of([&] { model.pass(); }), HasSubstr("call begin_step() before each step"));
      model.root().abandon_step();
    }
    model.pass();  // detached: gradients stay
    EXPECT_TRUE(model.root().grad(model.root().pieces()[0]));
  });
}

// D10: an ignored parameter (B3) is stepped when the synchronising backward ends, and its gradient is then no longer
// there.
TEST_P(InBackward, D10_StepsIgnoredParameters) {
  for (const Make& make : all_optimizers()) {
    run_local_ranks(GetParam().num_ranks, [&](auto world) {
      ShardedOptions ignoring = options();
      ignoring.ignores_first = true;
      ShardedWeights model(world->duplicate("a"), units(), ignoring);
      ShardedWeights plain(std::move(world), units(), ignoring);
      const auto data_of = [](ShardedWeights& each) {
        each.device_mesh().compute().synchronize();
        const TensorView data = each.weight(0, 0).parameter->data;
        return Values(data.as<float>(), data.as<float>() + data.numel());
      };
      const auto optimizer = make(model.root()), plain_optimizer = make(plain.root());
      OptimizerInBackward in_backward(*optimizer);
      for (int step = 1; step <= 3; ++step) {
        in_backward.begin_step(0.1);
        plain.weight(0, 0).parameter->grad_written = false;
        const Values before = data_of(model);
        for (const bool syncs : {false, true}) {
          for (ShardedWeights* each : {&model, &plain}) {
            set_grads(*each, 2 * step + (syncs ? 1 : 0));
            each->root().set_gradient_sync(syncs);
            each->pass({true, step != 2, true, true});
          }
          EXPECT_EQ(model.weight(0, 0).parameter->grad_written, !syncs);
          if (!syncs) {
            EXPECT_EQ(data_of(model), before);
          }
        }
        plain_optimizer->step({.lr = 0.1});
        plain.root().zero_grad();
        EXPECT_NE(data_of(model), before);
        EXPECT_EQ(data_of(model), data_of(plain));
      }
      for (const char* name : {"u0.b", "u1.c", "u2.e"}) EXPECT_EQ(model.gather(name), plain.gather(name)) << name;
      EXPECT_EQ(optimizer->steps_of("u0.a"), 3);
    });
  }
}

}  // namespace
}  // namespace mica::optim
