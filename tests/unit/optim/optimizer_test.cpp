// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/optimizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/optim/clip_grad_norm.hpp"

#include "testing/checking_stream.hpp"
#include "unit/optim/stepped_weights.hpp"

namespace mica::optim {
namespace {

using namespace steps;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;

// --- sharding ------------------------------------------------------------------------------------------------------

std::vector<Values> trained(std::unique_ptr<ProcessGroup> world, const Make& make, const ShardedOptions& options) {
  ShardedWeights model(std::move(world), odd_units(), options);
  const auto optimizer = make(model.root());
  for (int t = 1; t <= 3; ++t) train_step(model, *optimizer, t);
  std::vector<Values> found;
  for (const std::string& name : kOddNames) found.push_back(model.gather(name));
  return found;
}

class OptimizerOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(OptimizerOnRanks, ShardedEqualsUnsharded) {
  for (const auto& [name, make] : all_optimizers()) {
    std::vector<Values> alone;
    run_local_ranks(1, [&, &make = make](auto world) { alone = trained(std::move(world), make, {}); });
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      run_local_ranks(GetParam(), [&, &name = name, &make = make](auto world) {
        const std::vector<Values> found = trained(std::move(world), make, {.mode = mode});
        for (std::size_t i = 0; i < found.size(); ++i) {
          // Averaging equal gradients is exact for powers of two.
          if (GetParam() != 3) {
            EXPECT_TRUE(same_bits(found[i], alone[i])) << name << " " << kOddNames[i];
            continue;
          }
          for (std::size_t k = 0; k < found[i].size(); ++k) {
            EXPECT_NEAR(found[i][k], alone[i][k], 2e-6) << name << " " << kOddNames[i] << " " << k;
          }
        }
      });
    }
  }
}

TEST_P(OptimizerOnRanks, PaddingStaysZero) {
  for (const auto& [name, make] : all_optimizers()) {
    run_local_ranks(GetParam(), [&, &name = name, &make = make](auto world) {
      ShardedWeights model(std::move(world), odd_units());
      const auto optimizer = make(model.root());
      for (int t = 1; t <= 3; ++t) train_step(model, *optimizer, t);
      model.device_mesh().compute().synchronize();
      const auto expect_zero_outside = [&, &name = name](const fsdp::UnitStorage& storage, ConstTensorView data) {
        std::vector<bool> is_padding(static_cast<std::size_t>(data.numel()), true);
        for (const fsdp::Piece& piece : storage.layout().pieces(storage.shard_rank())) {
          std::fill_n(is_padding.begin() + piece.offset, piece.numel(), false);
        }
        for (std::size_t i = 0; i < is_padding.size(); ++i) {
          if (!is_padding[i]) continue;
          EXPECT_EQ(data.as<float>()[i], 0.0F) << name << ", element " << i;
        }
      };
      for (const fsdp::Unit* unit : model.root().units()) {
        if (unit->storage()) expect_zero_outside(*unit->storage(), unit->storage()->master());
      }
      for (const StateShard& shard : optimizer->state()) expect_zero_outside(*shard.storage, shard.data);
    });
  }
}

// D6: gradients kept in low precision are widened as they are stepped, chunk by chunk: the same bits as from widened
// ones.
TEST_P(OptimizerOnRanks, D6_GradientsInLowPrecision) {
  if (GetParam() == 3) return;  // a third has no end in either dtype
  const std::vector<std::vector<WeightSpec>> units{{weight("a", 3, true, 1), weight("large", 150'001, true, 2)},
                                                   {weight("b", 5, false, 3)}};
  for (const auto& [name, make] : all_optimizers()) {
    run_local_ranks(GetParam(), [&, &name = name, &make = make](auto world) {
      const auto trained = [&](std::unique_ptr<ProcessGroup> ranks, bool keeps) {
        fsdp::Options options;
        options.mixed_precision = {.reduce_dtype = DType::bf16, .keep_low_precision_grads = keeps};
        ShardedWeights model(std::move(ranks), units, {.fsdp = options});
        const auto optimizer = make(model.root());
        const Tensor half(model.pool().allocate(4, MemoryRole::workspace, model.device_mesh().compute()), Shape{1}, DType::f32);
        model.kernels().fill(model.device_mesh().compute(), half, 0.5);
        for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t, {.lr = 0.1, .grad_scale = half});
        return snapshot(model, *optimizer);
      };
      const auto wide = trained(world->duplicate("wide"), false);
      EXPECT_TRUE(same_bits(trained(std::move(world), true), wide)) << name;
    });
  }
}

// The step of two units is: gradients -> norm -> step -> zero_grad -> next forward, on streams that know every access.
TEST_P(OptimizerOnRanks, EveryAccessIsOrdered) {
  run_local_ranks(GetParam(), [](auto world) {
    HappensBeforeChecker checker;
    {
      const auto make_stream = [&](std::string name, StreamMode mode) { return checker.wrap(make_cpu_stream(std::move(name), mode)); };
      ShardedWeights model(std::move(world), odd_units(), {.mode = StreamMode::threaded, .make_stream = make_stream});
      const auto optimizer = make_adamw(model.root(), {.decoupled = false});
      for (int t = 1; t <= 3; ++t) {
        set_grads(model, t);
        model.pass();
        const ClipCoefficient clip = clip_coefficient(model.root(), 0.5);
        optimizer->step({.lr = 0.1, .grad_scale = clip.coefficient});
        model.root().zero_grad();
        model.device_mesh().compute().synchronize();  // the gradients are host memory of the test
      }
    }
    for (const auto& violation : checker.violations()) ADD_FAILURE() << violation.text;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OptimizerOnRanks, ::testing::Values(2, 3, 4));

// --- what a step leaves alone --------------------------------------------------------------------------------------

TEST(Optimizer, ASkippedStepChangesNothing) {
  for (const auto& [name, make] : all_optimizers()) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      run_local_ranks(2, [&, &name = name, &make = make](auto world) {
        ShardedWeights model(std::move(world), odd_units(), {.mode = mode});
        const auto optimizer = make(model.root());
        train_step(model, *optimizer, 1);
        const auto before = snapshot(model, *optimizer);
        float skip = 1;
        const StepArgs args{.lr = 0.1, .skip = ConstTensorView(&skip, Shape{1}, DType::f32)};
        train_step(model, *optimizer, 2, args);
        EXPECT_TRUE(same_bits(snapshot(model, *optimizer), before)) << name;
        skip = 0;
        train_step(model, *optimizer, 2, args);
        EXPECT_FALSE(same_bits(snapshot(model, *optimizer), before)) << name;
      });
    }
  }
}

// A live run's count of skipped steps is the scaler's and goes on; an optimizer whose counts are set, or that is new,
// has none of them in its own.
TEST(Optimizer, StepsSkippedBeforeItsCountsWereSetAreNotTakenOff) {
  for (const bool is_new : {false, true}) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      run_local_ranks(2, [&](auto world) {
        ShardedWeights model(world->duplicate("a"), odd_units(), {.mode = mode});
        ShardedWeights plain(std::move(world), odd_units(), {.mode = mode});
        auto optimizer = make_adamw(model.root(), {});
        const auto plain_optimizer = make_adamw(plain.root(), {});
        float skip = 1, skipped = 0;
        const StepArgs args{.lr = 0.1,
                            .skip = ConstTensorView(&skip, Shape{1}, DType::f32),
                            .skipped_steps = ConstTensorView(&skipped, Shape{1}, DType::f32)};
        for (int t = 1; t <= 3; ++t) {
          train_step(model, *optimizer, t, args);
          model.device_mesh().compute().synchronize();
          skipped += 1;
        }
        if (is_new) {
          optimizer = make_adamw(model.root(), {});
        } else {
          optimizer->set_num_steps(0);
        }
        skip = 0;
        for (int t = 1; t <= 2; ++t) {
          train_step(model, *optimizer, t, args);
          train_step(plain, *plain_optimizer, t);
        }
        EXPECT_TRUE(same_bits(snapshot(model, *optimizer), snapshot(plain, *plain_optimizer)));
        optimizer->take_off_skipped_steps(3);
        EXPECT_EQ(optimizer->num_steps(), 2);
        EXPECT_EQ(optimizer->steps_of("u0.a"), 2);
      });
    }
  }
}

TEST(Optimizer, AnAbandonedStepDoneAgainGivesTheSameBits) {
  for (const auto& [name, make] : all_optimizers()) {
    const auto run = [&, &make = make](bool abandons) {
      std::vector<Values> found;
      run_local_ranks(2, [&](auto world) {
        const bool is_first_rank = world->rank() == 0;
        ShardedWeights model(std::move(world), odd_units());
        const auto optimizer = make(model.root());
        for (int t = 1; t <= 3; ++t) {
          if (abandons) {
            set_grads(model, t + 50);
            model.pass();
            model.root().abandon_step();
          }
          train_step(model, *optimizer, t);
        }
        if (is_first_rank) found = snapshot(model, *optimizer);
      });
      return found;
    };
    EXPECT_TRUE(same_bits(run(true), run(false))) << name;
  }
}

TEST(Optimizer, AUnitWithoutGradientIsLeftAlone) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), odd_units());
    const auto optimizer = make_adamw(model.root(), {});
    set_grads(model, 1);
    model.pass({true, false, true});
    optimizer->step({.lr = 0.1});
    EXPECT_EQ(model.gather("u1.d"), numbers(1, 4));
    EXPECT_NE(model.gather("u2.e"), numbers(5, 5));
    EXPECT_EQ(optimizer->state().size(), 4U);  // two units, two kinds
  });
}

TEST(Optimizer, FrozenParametersAreNeverTouchedNotEvenByDecay) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world),
                         {{weight("a", 64, true, 1), weight("b", 64, true, 2), weight("c", 64, true, 3)}, {weight("d", 3, true, 4)}});
    model.weight(0, 1).parameter->requires_grad = false;
    model.weight(1, 0).parameter->requires_grad = false;
    const auto optimizer = make_sgd(model.root(), {.momentum = 0.5, .weight_decay = 0.5});
    for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t);
    EXPECT_EQ(model.gather("u0.b"), numbers(64, 2));
    EXPECT_EQ(model.gather("u1.d"), numbers(3, 4));
    EXPECT_NE(model.gather("u0.a"), numbers(64, 1));
    EXPECT_NE(model.gather("u0.c"), numbers(64, 3));
    optimizer->allocate_state();
    EXPECT_EQ(optimizer->state().size(), 1U);  // a frozen unit has none
  });
}

TEST(Optimizer, AParameterWithoutBackwardInAUnitWithGradientsHasZeroGradients) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), {{weight("a", 3, true, 1), weight("b", 2, true, 2)}});
    model.weight(0, 1).has_grad = false;
    const auto optimizer = make_sgd(model.root(), {.weight_decay = 0.5});
    train_step(model, *optimizer, 1, {.lr = 0.5});
    // p - 0.5 * (0 + 0.5 * p)
    Values expected = numbers(2, 2);
    for (float& e : expected) e *= 0.75F;
    EXPECT_THAT(model.gather("u0.b"), ::testing::Pointwise(::testing::FloatEq(), expected));
  });
}

// A forward without a backward leaves parameters unsharded, which the step makes old.
TEST(Optimizer, TheNextForwardSeesWhatTheStepWrote) {
  run_local_ranks(2, [](auto world) {
    ShardedOptions options;
    options.fsdp.strategy = fsdp::Strategy::shard_grad_op;
    ShardedWeights model(std::move(world), odd_units(), options);
    const auto optimizer = make_sgd(model.root(), {});
    set_grads(model, 1);
    model.pass();
    {
      nn::Record record;
      static_cast<void>(model.model().forward(model.context(), nn::Tensors(), &record));
    }
    optimizer->step({.lr = 0.1});
    for (const fsdp::Unit* unit : model.root().units()) {
      EXPECT_FALSE(unit->storage() && unit->storage()->is_unsharded()) << unit->name();
    }
  });
}

TEST(Optimizer, OutOfMemoryComesBeforeAnyChange) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), odd_units());
    const auto optimizer = make_adamw(model.root(), {});
    set_grads(model, 1);
    model.pass();
    const auto before = snapshot(model, *optimizer);
    // Room for the state of the first unit only: 2 * 4 * (64 + 128 + 67) bytes.
    model.pool().set_limit(model.pool().stats().current + 2 * 4 * 259);
    EXPECT_THROW(optimizer->step({.lr = 0.1}), IoError);
    EXPECT_EQ(optimizer->num_steps(), 0);
    const auto after = snapshot(model, *optimizer);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(after[i], before[i]));
    model.pool().set_limit(std::numeric_limits<std::int64_t>::max());
    optimizer->step({.lr = 0.1});
    EXPECT_EQ(optimizer->num_steps(), 1);
  });
}

// --- state ---------------------------------------------------------------------------------------------------------

TEST(Optimizer, StateIsOneBufferPerUnitAndKindOfTheShardsSize) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), odd_units());
    const auto optimizer = make_adamw(model.root(), {});
    EXPECT_THAT(optimizer->state_kinds(), ElementsAre("exp_avg", "exp_avg_sq"));
    EXPECT_TRUE(optimizer->state().empty());
    EXPECT_EQ(model.pool().stats().current_of(MemoryRole::optimizer), 0);
    optimizer->allocate_state();
    optimizer->allocate_state();
    // Per rank: u0 64 + 128 + 67 = 259 -> 130; u1 1 -> 1; u2 5 -> gap to 64, + 131 = 195 -> 98. Two kinds of 4 bytes.
    EXPECT_EQ(model.pool().stats().current_of(MemoryRole::optimizer), 2 * 4 * (130 + 1 + 98));
    std::vector<std::string> kinds;
    std::vector<std::int64_t> numels;
    for (const StateShard& shard : optimizer->state()) {
      kinds.push_back(shard.kind);
      numels.push_back(shard.data.numel());
      for (std::int64_t i = 0; i < shard.data.numel(); ++i) EXPECT_EQ(shard.data.as<float>()[i], 0.0F);
    }
    EXPECT_THAT(kinds, ElementsAre("exp_avg", "exp_avg_sq", "exp_avg", "exp_avg_sq", "exp_avg", "exp_avg_sq"));
    EXPECT_THAT(numels, ElementsAre(130, 130, 1, 1, 98, 98));
    const auto sgd = make_sgd(model.root(), {.momentum = 0.9});
    EXPECT_THAT(sgd->state_kinds(), ElementsAre("momentum_buffer"));
    EXPECT_TRUE(make_sgd(model.root(), {})->state_kinds().empty());
  });
}

TEST(Optimizer, GoesOnWhereItsStateWasSaved) {
  auto makes = all_optimizers();
  makes["dampened"] = [](fsdp::Root& root) { return make_sgd(root, {.momentum = 0.9, .dampening = 0.5}); };
  for (const auto& [name, make] : makes) {
    run_local_ranks(2, [&, &name = name, &make = make](auto world) {
      const auto own_world = world->duplicate("own");
      ShardedWeights model(own_world->duplicate("a"), odd_units());
      const auto optimizer = make(model.root());
      for (int t = 1; t <= 2; ++t) train_step(model, *optimizer, t);
      const auto saved = snapshot(model, *optimizer);

      ShardedWeights resumed(own_world->duplicate("b"), odd_units());
      const auto loaded = make(resumed.root());
      loaded->allocate_state();
      loaded->set_num_steps(optimizer->num_steps());
      resumed.device_mesh().compute().synchronize();
      std::size_t next = 0;
      const auto load = [&](TensorView view) {
        std::copy(saved[next].begin(), saved[next].end(), view.as<float>());
        ++next;
      };
      for (const fsdp::Unit* unit : resumed.root().units()) {
        if (unit->storage()) load(unit->storage()->write_master());
      }
      for (const StateShard& shard : loaded->state()) load(shard.data);
      EXPECT_EQ(next, saved.size());

      train_step(model, *optimizer, 3);
      train_step(resumed, *loaded, 3);
      EXPECT_TRUE(same_bits(snapshot(model, *optimizer), snapshot(resumed, *loaded))) << name;
      EXPECT_EQ(loaded->num_steps(), 3);
    });
  }
}

TEST(Optimizer, StateAllocatedAheadOfTheFirstStepChangesNothing) {
  const auto run = [](bool ahead) {
    Values found;
    run_local_ranks(1, [&](auto world) {
      ShardedWeights model(std::move(world), odd_units());
      const auto optimizer = make_sgd(model.root(), {.momentum = 0.9, .dampening = 0.5});
      if (ahead) optimizer->allocate_state();
      train_step(model, *optimizer, 1);
      found = model.gather("u2.f");
    });
    return found;
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

}  // namespace
}  // namespace mica::optim
