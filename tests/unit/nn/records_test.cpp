// What a Record is: [Note: records]. Everything here holds for whole models, so that each layer takes part.
#include <algorithm>
#include <cmath>

#include "mica/nn/gelu.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/sequential.hpp"

#include "nn_testing.hpp"

namespace mica::nn {
namespace {
using testing::floats;
using testing::gradients;
using testing::NamedGradient;
using testing::Rig;

Gpt2Config small_gpt2(double dropout = 0) {
  return {.layers = 2, .heads = 3, .width = 9, .context = 8, .vocab_size = 13, .dropout = dropout};
}

/// A model with storage, and batches.
struct ModelRun {
  explicit ModelRun(double dropout = 0, StreamMode mode = StreamMode::inlined)
      : rig(testing::KernelsKind::cpu, mode), model(small_gpt2(dropout)), storage(model, rig.context) {}

  void at(int batch) {
    rig.use_batch(2, 10 * batch);
    rig.context.step = static_cast<std::uint64_t>(batch) + 1;
  }
  Tensors inputs(int batch) {
    return {rig.tokens({2, 7}, 13, "ids" + std::to_string(batch)),
            rig.tokens({2, 7}, 13, "targets" + std::to_string(batch))};
  }
  Tensors forward(int batch, Record* record) {
    at(batch);
    return model.forward(rig.context, inputs(batch), record);
  }
  void backward(Record& record) { model.backward(rig.context, std::move(record), {rig.scalar(1)}); }
  void set_checkpointed(const std::string& type_name, bool on = true) {
    model.for_each_module([&](const std::string&, Module& module) {
      if (module.type_name() == type_name) module.set_checkpointed(on);
    });
  }

  Rig rig;
  Gpt2 model;
  PlainParameters storage;
};

/// Gradients and loss of one batch.
struct Result {
  std::vector<float> loss;
  std::vector<NamedGradient> gradients;
  bool operator==(const Result&) const = default;
};

Result run_one(ModelRun& run, int batch = 0) {
  Record record;
  const Tensors ys = run.forward(batch, &record);
  run.backward(record);
  Result result{floats(run.rig, ys[0]), gradients(run.rig, run.model)};
  run.storage.zero_grad();
  return result;
}

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
              ASSERT_NEAR(sums[p].values[i], expected, 1e-5F + 1e-5F * std::abs(expected))
                  << sums[p].name << " " << checkpointed;
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
  for (const std::string what :
       {"gpt2", "gpt2_transformer", "gpt2_block", "causal_self_attention", "gpt2_mlp", "linear", "layer_norm", "gelu",
        "dropout", "embedding", "position_embedding", "head_loss"}) {
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
struct NoHooks final : ModuleHooks {
  void pre_forward(Context&, Module&, Tensors&, Record*) override {}
  void post_forward(Context&, Module&, Tensors&, Record*) override {}
  void pre_backward(Context&, Module&, Record&, Tensors&) override {}
  void post_backward(Context&, Module&, Record&, Tensors&) override {}
};

TEST(Records, NormsThatAreUnitsKeepTheirOutputsAndGiveTheSameBits) {
  ModelRun plain, wrapped;
  for (ModelRun* run : {&plain, &wrapped}) run->rig.context.recompute = Recompute::cheap;
  const Result expected = run_one(plain);
  wrapped.model.for_each_module(
      [](const std::string&, Module& module) { module.set_hooks(std::make_shared<NoHooks>()); });
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

TEST(Gradients, AnLvalueListOfGradientsIsLeftAsItIs) {
  Rig rig;
  Residual residual("r");
  residual.add<LayerNorm>("norm", 5);
  residual.add<Linear>("linear", 5, 5);
  const PlainParameters storage(residual, rig.context);
  const Tensor x = rig.normal({3, 5}, "x");
  const Tensors dys = {rig.normal({3, 5}, "dy")};
  const auto before = floats(rig, dys[0]);
  Record record;
  static_cast<void>(residual.forward(rig.context, {x}, &record));
  const Tensors dxs = residual.backward(rig.context, std::move(record), dys);
  EXPECT_EQ(floats(rig, dys[0]), before);

  Record again;
  static_cast<void>(residual.forward(rig.context, {x}, &again));
  Tensors handed_over = {rig.normal({3, 5}, "dy")};
  const void* memory = handed_over[0].view().data;
  const Tensors in_place = residual.backward(rig.context, std::move(again), std::move(handed_over));
  EXPECT_EQ(in_place[0].view().data, memory) << "a list that was handed over is accumulated in place";
  EXPECT_EQ(floats(rig, in_place[0]), floats(rig, dxs[0]));
}

TEST(Gradients, AGeluOverwritesOnlyWhatIsHandedOver) {
  Rig rig;
  Gelu gelu;
  const Tensor x = rig.normal({3, 5}, "x");
  Tensors dys = {rig.normal({3, 5}, "dy")};
  const auto before = floats(rig, dys[0]);
  Record first, second;
  static_cast<void>(gelu.forward(rig.context, {x}, &first));
  static_cast<void>(gelu.forward(rig.context, {x}, &second));
  const auto expected = floats(rig, gelu.backward(rig.context, std::move(first), dys)[0]);
  EXPECT_EQ(floats(rig, dys[0]), before);
  EXPECT_EQ(floats(rig, gelu.backward(rig.context, std::move(second), std::move(dys))[0]), expected);
}

TEST(Gradients, AResidualsFirstLayerAddsToTheSumWithoutATensorOfItsOwn) {
  for (const int layers : {1, 2}) {
    Rig rig;
    Residual residual("r");
    for (int i = 0; i < layers; ++i) residual.add<Linear>("linear" + std::to_string(i), 5, 5);
    const PlainParameters storage(residual, rig.context);
    residual.for_each_parameter([](const std::string&, Parameter& p) { p.requires_grad = false; });  // nothing is saved
    const Tensor x = rig.normal({3, 5}, "x");
    Record record;
    static_cast<void>(residual.forward(rig.context, {x}, &record));
    Tensors dys = {rig.normal({3, 5}, "dy")};
    rig.pool->reset_peak();
    const std::int64_t before = rig.activation_bytes();
    static_cast<void>(residual.backward(rig.context, std::move(record), std::move(dys)));
    // Of two layers the second one makes a dx, to which the first's is not added: that goes into dy. One layer alone
    // reads dy itself, so its dx cannot be added there at once.
    EXPECT_EQ(rig.pool->stats().peak_of(MemoryRole::activation) - before, 3 * 5 * 4) << layers;
  }
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

TEST(Gradients, InputsThatNeedNoneGetNone) {
  Rig rig;
  for (const bool needs_grad : {false, true}) {
    Linear linear(5, 3);
    LayerNorm norm(5);
    Residual residual("r");
    residual.add<Linear>("linear", 5, 5);
    for (Module* module : std::initializer_list<Module*>{&linear, &norm, &residual}) {
      const PlainParameters storage(*module, rig.context);
      const Tensor x = rig.normal({3, 5}, "x", needs_grad);
      Record record;
      Tensors ys = module->forward(rig.context, {x}, &record);
      EXPECT_TRUE(ys[0].needs_grad);
      rig.pool->reset_peak();
      const std::int64_t before = rig.activation_bytes();
      const Tensors dxs = module->backward(rig.context, std::move(record), ys);
      EXPECT_EQ(static_cast<bool>(dxs.at(0)), needs_grad) << module->type_name();
      if (!needs_grad && module == &linear) {
        EXPECT_EQ(rig.pool->stats().peak_of(MemoryRole::activation), before) << "no memory for a dx";
      }
    }
  }
}

TEST(Gradients, AbsentOnesRunNothingAndFreeTheRecord) {
  ModelRun run;
  const std::int64_t before = run.rig.activation_bytes();
  Record record;
  { const Tensors ys = run.forward(0, &record); }
  const Tensors dxs = run.model.backward(run.rig.context, std::move(record), {Tensor()});
  EXPECT_EQ(dxs.size(), 2U);
  EXPECT_FALSE(dxs[0] || dxs[1]);
  EXPECT_TRUE(gradients(run.rig, run.model).empty());
  EXPECT_EQ(run.rig.activation_bytes(), before);
}

/// Counts backwards.
struct CountingHooks final : ModuleHooks {
  int backwards = 0;
  void pre_forward(Context&, Module&, Tensors&, Record*) override {}
  void post_forward(Context&, Module&, Tensors&, Record*) override {}
  void pre_backward(Context&, Module&, Record&, Tensors&) override { ++backwards; }
  void post_backward(Context&, Module&, Record&, Tensors&) override {}
};

TEST(Frozen, ParametersGetNoGradientAndAFrozenPrefixNoBackward) {
  ModelRun plain, run;
  const Result expected = run_one(plain);
  auto first_block = std::make_shared<CountingHooks>(), second_block = std::make_shared<CountingHooks>();
  run.model.for_each_module([&](const std::string& name, Module& module) {
    if (name == "transformer.h.0") module.set_hooks(first_block);
    if (name == "transformer.h.1") module.set_hooks(second_block);
  });
  // Everything in front of the second block's MLP; its head weight is tied to the embedding's.
  run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
    p.requires_grad = name.starts_with("transformer.h.1.mlp") || name.starts_with("transformer.ln_f");
  });
  const Result result = run_one(run);
  EXPECT_EQ(result.loss, expected.loss);
  EXPECT_EQ(first_block->backwards, 0);
  EXPECT_EQ(second_block->backwards, 1);
  ASSERT_EQ(result.gradients.size(), 6U);
  for (const NamedGradient& gradient : result.gradients) {
    const auto same = std::ranges::find(expected.gradients, gradient.name, &NamedGradient::name);
    ASSERT_NE(same, expected.gradients.end());
    EXPECT_EQ(gradient.values, same->values) << gradient.name;
  }
}

TEST(Frozen, EachParameterAloneTrainsAsWithTheOthers) {
  ModelRun plain;
  const Result expected = run_one(plain);
  for (const NamedGradient& gradient : expected.gradients) {
    ModelRun run;
    run.model.for_each_parameter(
        [&](const std::string& name, Parameter& p) { p.requires_grad = name == gradient.name; });
    const Result result = run_one(run);
    ASSERT_EQ(result.gradients.size(), 1U) << gradient.name;
    if (gradient.name == "transformer.wte.weight") continue;
    EXPECT_EQ(result.gradients[0], gradient);
  }
}

TEST(Frozen, EverythingFrozenStillGivesTheLoss) {
  for (const bool loss_in_backward : {false, true}) {
    ModelRun plain, run;
    run.rig.context.loss_in_backward = loss_in_backward;
    run.model.for_each_parameter([](const std::string&, Parameter& p) { p.requires_grad = false; });
    for (const auto* checkpointed : {"", "gpt2_block", "gpt2"}) {
      run.set_checkpointed(checkpointed);
      Record record;
      EXPECT_FALSE(run.forward(0, &record)[0].needs_grad) << checkpointed;
    }
    const Result result = run_one(run);
    EXPECT_EQ(result.loss, run_one(plain).loss);
    EXPECT_TRUE(result.gradients.empty());
  }
}

TEST(Frozen, GradientsOfAParameterThawedBetweenTwoBackwardsStartAnew) {
  Rig rig;
  Linear linear(3, 2);
  LayerNorm norm(3);
  for (Module* module : std::initializer_list<Module*>{&linear, &norm}) {
    const PlainParameters storage(*module, rig.context);
    Parameter &weight = *module->own_parameters()[0], &bias = *module->own_parameters()[1];
    const auto step = [&] {
      Record record;
      const Tensors ys = module->forward(rig.context, {rig.normal({4, 3}, "x")}, &record);
      module->backward(rig.context, std::move(record), {rig.normal(ys[0].shape(), "dy")});
    };
    step();
    const auto weight_once = floats(rig, weight.grad), bias_once = floats(rig, bias.grad);
    weight.grad_written = bias.grad_written = false;
    bias.requires_grad = false;
    step();
    bias.requires_grad = true;
    step();
    const auto expect_times = [&](Parameter& parameter, const std::vector<float>& once, float times) {
      const auto sum = floats(rig, parameter.grad);
      for (std::size_t i = 0; i < once.size(); ++i) {
        EXPECT_NEAR(sum[i], times * once[i], 1e-5F) << module->type_name() << "." << parameter.name;
      }
    };
    expect_times(weight, weight_once, 2);
    expect_times(bias, bias_once, 1);
    step();
    weight.grad_written = false;
    step();
    expect_times(weight, weight_once, 1);
    expect_times(bias, bias_once, 3);
    weight.requires_grad = false;
    step();
    expect_times(weight, weight_once, 1);
    expect_times(bias, bias_once, 4);
  }
}

}  // namespace
}  // namespace mica::nn
