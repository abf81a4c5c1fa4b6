// SPDX-License-Identifier: Apache-2.0
// docs/design.md, A step is a transaction, counters of the host included: abandoned at any collective, also after the host has
// run ahead to the end of the step, and done again, it leaves the bits of a run that was never disturbed.
#include <gtest/gtest.h>

#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/grad_scaler.hpp"
#include "mica/optim/optimizer_in_backward.hpp"

#include "support/failing_group.hpp"
#include "unit/optim/stepped_weights.hpp"

namespace mica::optim {
namespace {

using namespace steps;  // NOLINT(google-build-using-namespace)
using testing::FailingGroup;
using testing::FailurePlan;
using testing::InjectedFailure;

/// What a rank has after three steps.
struct Outcome {
  std::vector<Values> state;
  Values ignored;
  std::int64_t num_steps = 0;
  std::map<std::string, std::int64_t> parameter_steps;
  GradScaler::State scale;

  friend bool operator==(const Outcome& a, const Outcome& b) {
    return same_bits(a.state, b.state) && same_bits(a.ignored, b.ignored) && a.num_steps == b.num_steps &&
           a.parameter_steps == b.parameter_steps && a.scale == b.scale;
  }
};

struct Failure {
  std::int64_t step = 0, collective = -1;
};

/// Three steps with a loss scaler, clipping and an ignored parameter; step 2 leaves out a unit, step 3 overflows.
Outcome run(const Make& make, StreamMode mode, Failure failure, std::int64_t* num_collectives = nullptr) {
  Outcome outcome;
  run_local_ranks(2, [&](auto world) {
    const int rank = world->rank();
    FailurePlan plan(failure.collective);
    ShardedOptions options{.mode = mode, .ignores_first = true};
    options.fsdp.forward_prefetch = true;
    options.fsdp.root = fsdp::RootOptions{.use_orig_params = true};
    ShardedWeights model(std::make_unique<FailingGroup>(std::move(world), plan), odd_units(), options);
    GradScaler scaler(model.root(), {.init_scale = 4, .growth_interval = 1});
    const auto optimizer = make(model.root());
    Stream& compute = model.device_mesh().compute();
    const auto step = [&](int t) {
      set_grads(model, t);
      if (t == 3) model.weight(2, 0).grad[1] = std::numeric_limits<float>::infinity();
      const Tensor dloss = scaler.scaled(1);
      model.pass({true, t != 2, true});
      scaler.unscale();
      const ClipCoefficient clip = clip_coefficient(model.root(), 1.0);
      optimizer->step(
          {.lr = 0.1, .grad_scale = clip.coefficient.view(), .skip = scaler.found_inf(), .skipped_steps = scaler.skipped_steps()});
      scaler.update();
      model.root().zero_grad();
      compute.synchronize();
      model.weight(0, 0).parameter->grad_written = false;  // its holder's affair
    };
    for (int t = 1; t <= 4; ++t) {
      if (t == failure.step) plan.arm();
      try {
        step(t);
      } catch (const InjectedFailure&) {
        model.root().abandon_step();
        step(t);
      }
      plan.disarm();
    }
    scaler.take_skipped_steps_off(*optimizer);
    const TensorView ignored = model.weight(0, 0).parameter->data;
    if (rank == 0) {
      outcome = {snapshot(model, *optimizer), Values(ignored.as<float>(), ignored.as<float>() + ignored.numel()), optimizer->num_steps(),
                 optimizer->parameter_steps(), scaler.state()};
      if (num_collectives) *num_collectives = plan.num_seen();
    }
  });
  return outcome;
}

TEST(AbandonedStep, DoneAgainLeavesWhatAnUndisturbedRunLeaves) {
  for (const auto& [name, make] : all_optimizers()) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      const Outcome undisturbed = run(make, mode, {});
      EXPECT_EQ(undisturbed.num_steps, 3);
      for (const std::int64_t step : {1, 2, 3, 4}) {
        std::int64_t num_collectives = 0;
        static_cast<void>(run(make, mode, {step, -1}, &num_collectives));
        ASSERT_GE(num_collectives, 10) << "step " << step;
        for (std::int64_t k = 0; k < num_collectives; ++k) {
          EXPECT_TRUE(run(make, mode, {step, k}) == undisturbed) << name << ", step " << step << " abandoned at collective " << k;
        }
      }
    }
  }
}

// The second of two steps with the same gradients is a step of its own.
TEST(AbandonedStep, OfTwoWithoutZeroGradOnlyTheSecondIsTakenBack) {
  for (const auto& [name, make] : all_optimizers()) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      run_local_ranks(2, [&, &make = make](auto world) {
        ShardedWeights model(std::move(world), odd_units(), {.mode = mode});
        const auto optimizer = make(model.root());
        Stream& compute = model.device_mesh().compute();
        set_grads(model, 1);
        model.pass();
        optimizer->step({.lr = 0.1});
        const std::vector<Values> after_first = snapshot(model, *optimizer);
        const auto fail = [] { throw Error("the step's work does not run"); };
        EXPECT_THROW(
            {
              compute.submit("fail", {}, fail);
              optimizer->step({.lr = 0.1});
              compute.synchronize();
            },
            Error);
        model.root().abandon_step();
        EXPECT_EQ(optimizer->num_steps(), 1) << name;
        EXPECT_TRUE(optimizer->parameter_steps().empty()) << name;
        EXPECT_TRUE(same_bits(snapshot(model, *optimizer), after_first)) << name;
      });
    }
  }
}

// Counts that were read from a checkpoint stay, although a step had begun before.
TEST(AbandonedStep, CountsThatWereSetAreNotTakenBack) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), odd_units(), {.mode = StreamMode::threaded});
    const auto optimizer = make_adamw(model.root(), {});
    set_grads(model, 1);
    model.pass();
    model.device_mesh().compute().submit("fail", {}, [] { throw Error("the step's work does not run"); });
    optimizer->step({.lr = 0.1});
    optimizer->set_num_steps(7);
    model.root().abandon_step();
    EXPECT_EQ(optimizer->num_steps(), 7);
    EXPECT_EQ(optimizer->steps_of("u0.a"), 7);
  });
}

// A step in backward is one until its first unit is stepped: up to that unit's reduction it can be abandoned.
TEST(AbandonedStep, InBackwardBeforeAUnitIsStepped) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    const auto trained = [&](std::int64_t failing, std::int64_t& num_steps) {
      std::vector<Values> found;
      run_local_ranks(2, [&](auto world) {
        const int rank = world->rank();
        FailurePlan plan(failing);
        ShardedOptions options{.mode = mode};
        options.fsdp.root = fsdp::RootOptions{.use_orig_params = true};
        ShardedWeights model(std::make_unique<FailingGroup>(std::move(world), plan), odd_units(), options);
        const auto optimizer = make_adamw(model.root(), {});
        OptimizerInBackward in_backward(*optimizer);
        const auto step = [&](int t) {
          set_grads(model, t);
          in_backward.begin_step(0.1);
          model.pass();
        };
        for (int t = 1; t <= 3; ++t) {
          if (t == 2) plan.arm();
          try {
            step(t);
          } catch (const InjectedFailure&) {
            model.root().abandon_step();
            step(t);
          }
          plan.disarm();
        }
        if (rank != 0) return;
        num_steps = optimizer->num_steps();
        found = snapshot(model, *optimizer);
        EXPECT_TRUE(optimizer->parameter_steps().empty());
      });
      return found;
    };
    std::int64_t num_steps = 0;
    const std::vector<Values> undisturbed = trained(-1, num_steps);
    EXPECT_EQ(num_steps, 3);
    // Three gathers, the first one in backward, the first reduction. (4 is the gather of the unit that comes next: it
    // fails beside the first unit's reduction and step.)
    for (const std::int64_t k : {0, 1, 2, 3, 5}) {
      EXPECT_TRUE(same_bits(trained(k, num_steps), undisturbed)) << "abandoned at collective " << k;
      EXPECT_EQ(num_steps, 3) << "abandoned at collective " << k;
    }
  }
}

}  // namespace
}  // namespace mica::optim
