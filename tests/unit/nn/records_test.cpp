// SPDX-License-Identifier: Apache-2.0
// What a Record is: [Note: records]. Everything here holds for whole models, so that each layer takes part.
#include <cmath>

#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

#include "model_run.hpp"

namespace mica::nn {
namespace {

using testing::floats;
using testing::gradients;
using testing::ModelRun;
using testing::NamedGradient;
using testing::Result;
using testing::Rig;
using testing::run_one;

TEST(Records, NullSavesNothing) {
  ModelRun run;
  const Tensors xs = run.inputs(0);
  const std::int64_t before = run.rig.pool->stats().current;
  run.at(0);
  { const Tensors ys = run.model.forward(run.rig.context, xs, nullptr); }
  EXPECT_EQ(run.rig.pool->stats().current, before);
  EXPECT_TRUE(gradients(run.rig, run.model).empty());
}

TEST(Records, ForwardWithoutBackwardFreesEverythingWithTheRecord) {
  ModelRun run;
  const Tensors xs = run.inputs(0);
  const std::int64_t before = run.rig.pool->stats().current;
  {
    Record record;
    const Tensors ys = run.model.forward(run.rig.context, xs, &record);
    EXPECT_GT(run.rig.pool->stats().current, before + 4);
  }
  EXPECT_EQ(run.rig.pool->stats().current, before);
}

TEST(Records, NullAndRecordGiveTheSameLoss) {
  ModelRun run(0.1);
  Record record;
  const auto with = floats(run.rig, run.forward(0, &record)[0]);
  EXPECT_EQ(with, floats(run.rig, run.forward(0, nullptr)[0]));
}

TEST(Records, SeveralForwardsBeforeTheirBackwards) {
  for (const bool checkpointed : {false, true}) {
    ModelRun run(0.2);
    if (checkpointed) run.set_checkpointed("gpt2_block");
    std::vector<NamedGradient> one_by_one;
    for (const int batch : {0, 1}) {
      Record record;
      static_cast<void>(run.forward(batch, &record));
      run.backward(record);
    }
    one_by_one = gradients(run.rig, run.model);
    run.storage.zero_grad();
    Record first, second;
    static_cast<void>(run.forward(0, &first));
    static_cast<void>(run.forward(1, &second));
    run.at(7);  // dropout draws what the forward drew, not what the context says now
    run.backward(first);
    run.backward(second);
    EXPECT_EQ(gradients(run.rig, run.model), one_by_one) << "checkpointed " << checkpointed;
    EXPECT_EQ(run.rig.context.step, 8U) << "the context is as it was";
    EXPECT_EQ(run.rig.context.sequences, (std::vector<std::int64_t>{70, 71}));
  }
}

TEST(Records, KeptOnesServeSeveralBackwards) {
  struct Way {
    Recompute recompute;
    bool loss_in_backward;
  };
  for (const auto& [recompute, loss_in_backward] :
       {Way{Recompute::none, false}, Way{Recompute::none, true}, Way{Recompute::cheap, false}, Way{Recompute::cheap, true}}) {
    for (const std::string checkpointed : {"", "gpt2_block", "linear", "layer_norm", "gpt2_mlp", "gpt2"}) {
      ModelRun run(0.2);
      run.rig.context.recompute = recompute;
      run.rig.context.loss_in_backward = loss_in_backward;
      run.set_checkpointed(checkpointed);
      const Result once = run_one(run);
      const std::int64_t before = run.rig.pool->stats().current;
      {
        Record record;
        const Tensors ys = run.forward(0, &record);
        record.keep();
        const std::int64_t saved = run.rig.activation_bytes();
        for (int time = 1; time <= 3; ++time) {
          run.backward(record);
          EXPECT_EQ(run.rig.activation_bytes(), saved) << checkpointed << ": what was made again is dropped again";
          const auto sums = gradients(run.rig, run.model);
          ASSERT_EQ(sums.size(), once.gradients.size());
          for (std::size_t p = 0; p < sums.size(); ++p) {
            for (std::size_t i = 0; i < sums[p].values.size(); ++i) {
              const float expected = static_cast<float>(time) * once.gradients[p].values[i];
              ASSERT_NEAR(sums[p].values[i], expected, 1e-5F + 1e-5F * std::abs(expected)) << sums[p].name << " " << checkpointed;
            }
          }
          EXPECT_EQ(floats(run.rig, ys[0]), once.loss);
        }
        run.storage.zero_grad();
        record.keep(false);
        run.backward(record);
        EXPECT_EQ(gradients(run.rig, run.model), once.gradients) << checkpointed;
      }
      EXPECT_EQ(run.rig.pool->stats().current, before);
    }
  }
}

TEST(Records, CheckpointingAnythingGivesTheSameBits) {
  ModelRun plain(0.2);
  const Result expected = run_one(plain);
  for (const std::string what : {"gpt2", "gpt2_transformer", "gpt2_block", "causal_self_attention", "gpt2_mlp", "linear", "layer_norm",
                                 "gelu", "dropout", "embedding", "position_embedding", "head_loss"}) {
    for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
      for (const bool loss_in_backward : {false, true}) {
        ModelRun run(0.2);
        run.rig.context.recompute = recompute;
        run.rig.context.loss_in_backward = loss_in_backward;
        run.set_checkpointed(what);
        EXPECT_EQ(run_one(run), expected) << what;
      }
    }
  }
  for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
    ModelRun nested(0.2);
    nested.rig.context.recompute = recompute;
    for (const auto* what : {"gpt2_block", "gpt2_mlp", "linear"}) nested.set_checkpointed(what);
    EXPECT_EQ(run_one(nested), expected) << "checkpoints inside checkpoints";
  }
}

TEST(Records, TheLossComesWithTheForwardOrWithTheBackwardInTheSameBits) {
  ModelRun forward_run, backward_run;
  backward_run.rig.context.loss_in_backward = true;
  EXPECT_EQ(run_one(forward_run), run_one(backward_run));
}

TEST(Records, ThreadedStreamsGiveTheSameBits) {
  ModelRun inlined(0.2), threaded(0.2, StreamMode::threaded);
  EXPECT_EQ(run_one(inlined, 3), run_one(threaded, 3));
}

/// Hooks that do nothing: the module is a unit of its own.
struct NoRecordHooks final : ModuleHooks {
  void pre_forward(Context&, Module&, Tensors&, Record*) override {}
  void post_forward(Context&, Module&, Tensors&, Record*) override {}
  void pre_backward(Context&, Module&, Record&, Tensors&) override {}
  void post_backward(Context&, Module&, Record&, Tensors&) override {}
};

TEST(Records, NormsThatAreUnitsKeepTheirOutputsAndGiveTheSameBits) {
  ModelRun plain, wrapped;
  for (ModelRun* run : {&plain, &wrapped}) run->rig.context.recompute = Recompute::cheap;
  const Result expected = run_one(plain);
  wrapped.model.for_each_module([](const std::string&, Module& module) { module.set_hooks(std::make_shared<NoRecordHooks>()); });
  EXPECT_EQ(run_one(wrapped), expected);
  const auto saved = [](ModelRun& run) {
    Record record;
    const Tensors ys = run.forward(0, &record);
    return run.rig.activation_bytes();
  };
  // Two norms and a GELU in each of 2 blocks: 2 + 4 activations of 14 rows x 9 columns.
  EXPECT_EQ(saved(wrapped) - saved(plain), 2 * (2 + 4) * 14 * 9 * 4);
  ModelRun keeping;
  EXPECT_EQ(saved(keeping), saved(wrapped));
}

/// Doubles the inputs, as a unit that casts them makes other tensors of them.
struct DoublingHooks final : ModuleHooks {
  void pre_forward(Context& context, Module&, Tensors& xs, Record*) override {
    Tensor y = context.make(xs[0].shape(), xs[0].dtype());
    context.kernels.scale(context.compute, xs[0], 2, y, Write::overwrite);
    y.needs_grad = xs[0].needs_grad;
    xs[0] = y;
  }
  void post_forward(Context&, Module&, Tensors&, Record*) override {}
  void pre_backward(Context&, Module&, Record&, Tensors&) override {}
  void post_backward(Context&, Module&, Record&, Tensors&) override {}
};

TEST(Records, AnInputThatAUnitReplacedIsNotMadeAgainFromTheLayerBefore) {
  Rig rig;
  rig.context.recompute = Recompute::cheap;
  Sequential chain;
  chain.add<LayerNorm>("norm", 5);
  Linear& linear = chain.add<Linear>("linear", 5, 2);
  const PlainParameters storage(chain, rig.context);
  const auto weight_gradient = [&] {
    Record record;
    static_cast<void>(chain.forward(rig.context, {rig.normal({3, 5}, "x")}, &record));
    chain.backward(rig.context, std::move(record), {rig.normal({3, 2}, "dy")});
    linear.own_parameters()[0]->grad_written = linear.own_parameters()[1]->grad_written = false;
    return floats(rig, linear.own_parameters()[0]->grad);
  };
  const auto plain = weight_gradient();
  linear.set_hooks(std::make_shared<DoublingHooks>());
  const auto doubled = weight_gradient();
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(doubled[i], 2 * plain[i]);
}

}  // namespace
}  // namespace mica::nn
