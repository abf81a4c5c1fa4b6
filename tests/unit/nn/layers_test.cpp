// SPDX-License-Identifier: Apache-2.0
// Every layer's backward against finite differences on odd shapes, and what each layer computes or refuses.
#include <algorithm>
#include <cmath>

#include "mica/nn/activation.hpp"
#include "mica/nn/attention.hpp"
#include "mica/nn/dropout.hpp"
#include "mica/nn/embedding.hpp"
#include "mica/nn/gradcheck.hpp"
#include "mica/nn/head_loss.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/mlp.hpp"

#include "gradient_checks.hpp"

namespace mica::nn {
namespace {
using testing::floats;
using testing::KernelsKind;
using testing::kTolerance;
using testing::Rig;

class Layers : public testing::GradientChecks {};

INSTANTIATE_TEST_SUITE_P(Kernels, Layers, ::testing::Values(KernelsKind::reference, KernelsKind::cpu),
                         [](const auto& info) { return testing::to_string(info.param); });

TEST_P(Layers, Linear) {
  Linear with_bias(5, 7);
  check(with_bias, {rig.normal({3, 2, 5}, "x")}, 35 + 7 + 30);
  Linear without_bias(1, 3, {.bias = false});
  check(without_bias, {rig.normal({4, 1}, "x")}, 3 + 4);
  Linear to_one(6, 1);
  check(to_one, {rig.normal({1, 6}, "x")}, 6 + 1 + 6);
}

TEST_P(Layers, LayerNorm) {
  for (const std::int64_t width : {2, 7, 33}) {
    LayerNorm norm(width);
    check(norm, {rig.normal({3, width}, "x")}, 5 * width - 60);
  }
}

TEST_P(Layers, Gelu) {
  Gelu gelu;
  check(gelu, {rig.normal({3, 5}, "x")}, 15);
}

TEST_P(Layers, Embedding) {
  Embedding embedding(5, 3);
  check(embedding, {rig.tokens({2, 7}, 5)}, 15);
  PositionEmbedding positions(9, 3);
  check(positions, {rig.normal({2, 7, 3}, "x"), rig.tokens({2, 7}, 5)}, 27 + 42);
}

// What was frozen in its forward has kept nothing for a gradient: unfrozen before the backward it still has none, and
// says so.
TEST_P(Layers, AnEmbeddingThatWasFrozenInItsForwardHasNoGradient) {
  Embedding embedding(9, 3);
  PositionEmbedding positions(4, 3);
  const Tensor ids = rig.tokens({2, 2}, 9);
  for (Module* module : {static_cast<Module*>(&embedding), static_cast<Module*>(&positions)}) {
    const PlainParameters storage(*module, rig.context);
    Parameter& weight = *module->own_parameters().front();
    weight.requires_grad = false;
    Tensor x = rig.normal({2, 2, 3}, "x");
    x.needs_grad = true;
    Record record;
    const Tensors ys = module->forward(rig.context, module == &embedding ? Tensors{ids} : Tensors{x, ids}, &record);
    weight.requires_grad = true;
    module->backward(rig.context, std::move(record), ys);
    EXPECT_FALSE(weight.grad_written) << module->type_name();
  }
}

TEST_P(Layers, CausalSelfAttention) {
  for (const std::int64_t heads : {1, 3}) {
    CausalSelfAttention attention({.width = 9, .heads = heads});
    check(attention, {rig.normal({2, 5, 9}, "x")}, 200);
  }
  CausalSelfAttention one_token({.width = 4, .heads = 2});
  check(one_token, {rig.normal({3, 1, 4}, "x")}, 92);
}

TEST_P(Layers, HeadLoss) {
  HeadLoss head(11, 4);
  Tensor targets = rig.tokens({2, 3}, 11, "targets");
  check(head, {rig.normal({2, 3, 4}, "hidden"), targets}, 44 + 24);
  targets.view().as<std::int32_t>()[1] = -1;
  check(head, {rig.normal({2, 3, 4}, "hidden"), targets}, 44 + 24);
}

TEST_P(Layers, Dropout) {
  rig.use_batch(3);
  Dropout dropout(0.4, "d");
  check(dropout, {rig.normal({3, 4, 5}, "x")}, 60);
}

TEST_P(Layers, ChainsOfCheapLayersRecomputeThroughEachOther) {
  Sequential chain;  // the GELU's input and the Linear's are both made again, one from the other
  chain.add<LayerNorm>("norm", 5);
  chain.add<Gelu>("act");
  chain.add<Linear>("linear", 5, 3);
  check_with_recompute(chain, {rig.normal({4, 5}, "x")}, 15 + 3 + 20);
}

TEST_P(Layers, Residual) {
  Residual one("r");  // dy and the sum that dx is added to are one tensor here
  one.add<Linear>("linear", 5, 5);
  check_with_recompute(one, {rig.normal({3, 5}, "x")}, 25 + 5 + 15);
  Residual norm_first("r");
  norm_first.add<LayerNorm>("norm", 5);
  norm_first.add<Linear>("up", 5, 8);
  norm_first.add<Gelu>("act");
  norm_first.add<Linear>("down", 8, 5);
  check_with_recompute(norm_first, {rig.normal({3, 5}, "x")}, 100);
  Residual empty("r");  // 2 x
  check_with_recompute(empty, {rig.normal({3, 5}, "x")}, 15);
  Residual identity("r");
  identity.add<Dropout>("drop", 0.0, "d");
  check_with_recompute(identity, {rig.normal({3, 5}, "x")}, 15);
  Residual nested("r");
  nested.add<Residual>("inner", "r").add<Linear>("linear", 5, 5);
  check_with_recompute(nested, {rig.normal({3, 5}, "x")}, 45);
}

TEST_P(Layers, Gpt2) {
  for (const bool tied : {true, false}) {
    for (const double dropout : {0.0, 0.2}) {
      rig.use_batch(2);
      Gpt2 model({.layers = 2, .heads = 3, .width = 6, .context = 7, .vocab_size = 13, .tie_embeddings = tied, .dropout = dropout});
      const GradcheckReport report =
          gradcheck(model, rig.context, {rig.tokens({2, 5}, 13), rig.tokens({2, 5}, 13, "targets")}, {.max_elements = 12});
      EXPECT_LT(report.worst_error, kTolerance) << report.worst_element << " tied " << tied << " dropout " << dropout;
      EXPECT_GT(report.num_checked, 200);
    }
  }
}

TEST_P(Layers, Mlp) {
  Mlp model({.layers = 2, .width = 5, .intermediate_size = 7, .vocab_size = 13});
  check(model, {rig.tokens({2, 5}, 13), rig.tokens({2, 5}, 13, "targets")}, 300);
}

TEST(Gradcheck, SeesAWrongBackwardAndNamesTheElement) {
  /// y = 2x with the backward of y = x.
  struct Wrong final : Module {
    Wrong() : Module("wrong") {}
    Tensors do_forward(Context& c, Tensors xs, Record*) override {
      Tensor y = c.make(xs[0].shape(), DType::f32);
      c.kernels.scale(c.compute, xs[0], 2, y, Write::overwrite);
      return list_of(y);
    }
    Tensors do_backward(Context&, Record&, Tensors dys) override { return dys; }
  } wrong;
  Rig rig;
  const GradcheckReport report = gradcheck(wrong, rig.context, {rig.normal({3}, "x")});
  EXPECT_GT(report.worst_error, 0.1);
  EXPECT_EQ(report.worst_element.rfind("input 0[", 0), 0U) << report.worst_element;
}

TEST(Gradcheck, PutsInputsBack) {
  Rig rig;
  Gelu gelu;
  const Tensor x = rig.normal({7}, "x");
  const auto before = floats(rig, x);
  static_cast<void>(gradcheck(gelu, rig.context, {x}));
  EXPECT_EQ(floats(rig, x), before);
}

TEST(HeadLossLayer, LossIsTheSumOverTargetsDividedByAllRows) {
  Rig rig;
  HeadLoss head(4, 2);
  const PlainParameters storage(head, rig.context);
  rig.kernels->fill(*rig.stream, head.own_parameters()[0]->data, 0);  // all classes alike: log 4 a row
  Tensor targets = rig.tokens({2, 3}, 4, "targets");
  targets.view().as<std::int32_t>()[0] = -1;
  const Tensors loss = head.forward(rig.context, {rig.normal({2, 3, 2}, "hidden"), targets}, nullptr);
  EXPECT_NEAR(static_cast<double>(floats(rig, loss[0])[0]), 5.0 / 6.0 * std::log(4.0), 1e-6);
}

TEST(HeadLossLayer, EachRowHasOneTarget) {
  Rig rig;
  HeadLoss head(4, 2);
  const PlainParameters storage(head, rig.context);
  for (const Shape& shape : {Shape{5}, Shape{7}, Shape{2, 2}}) {
    try {
      static_cast<void>(head.forward(rig.context, {rig.normal({2, 3, 2}, "hidden"), rig.tokens(shape, 4, "targets")}, nullptr));
      ADD_FAILURE() << "6 rows and " << shape.numel() << " targets";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("targets for 6 rows of hidden states"), std::string::npos) << error.what();
    }
  }
}

TEST(HeadLossLayer, LogitsOfHiddenAlone) {
  Rig rig;
  HeadLoss head(5, 3);
  const PlainParameters storage(head, rig.context);
  const Tensor hidden = rig.normal({2, 1, 3}, "hidden");
  Record record;
  const Tensors logits = head.forward(rig.context, {hidden}, &record);
  EXPECT_EQ(logits[0].shape(), (Shape{2, 5}));
  const auto h = floats(rig, hidden), w = floats(rig, head.own_parameters()[0]->data), y = floats(rig, logits[0]);
  for (std::size_t m = 0; m < 2; ++m) {
    for (std::size_t v = 0; v < 5; ++v) {
      float sum = 0;
      for (std::size_t c = 0; c < 3; ++c) sum += h[3 * m + c] * w[3 * v + c];
      EXPECT_NEAR(y[5 * m + v], sum, 1e-6F);
    }
  }
  EXPECT_THROW(head.backward(rig.context, std::move(record), {rig.normal({2, 5}, "dlogits")}), Error);
}

TEST(HeadLossLayer, ATiedWeightAloneIsTrainedThroughACheckpointToo) {
  for (const bool checkpointed : {false, true}) {
    Rig rig;
    Embedding owner(5, 3);
    HeadLoss head(owner.weight());
    head.set_checkpointed(checkpointed);
    const PlainParameters storage(owner, rig.context);
    Record record;
    const Tensors loss = head.forward(rig.context, {rig.normal({2, 1, 3}, "hidden", false), rig.tokens({2, 1}, 5, "targets")}, &record);
    EXPECT_TRUE(loss[0].needs_grad);
    const Tensors dxs = head.backward(rig.context, std::move(record), {rig.scalar(1)});
    EXPECT_FALSE(dxs.at(0) || dxs.at(1));
    EXPECT_TRUE(owner.weight().grad_written);
  }
}

TEST(DropoutLayer, AModelsDropoutsDrawDifferentNumbers) {
  Rig rig;
  rig.use_batch(2);
  const auto run = [&](const std::string& name, const std::string& ones) {
    Gpt2Block block({.heads = 1, .width = 64, .dropout = 0.5}, name);
    const PlainParameters storage(block, rig.context);
    block.for_each_parameter(
        [&](const std::string& parameter, Parameter& p) { rig.kernels->fill(*rig.stream, p.data, parameter.ends_with(ones) ? 1 : 0); });
    const Tensor zeros = rig.context.make({2, 8, 64}, DType::f32);
    rig.kernels->fill(*rig.stream, zeros, 0);
    return floats(rig, block.forward(rig.context, {zeros}, nullptr)[0]);
  };
  const std::vector<std::vector<float>> masks = {run("a", "attn.c_proj.bias"), run("b", "attn.c_proj.bias"), run("a", "mlp.c_proj.bias"),
                                                 run("b", "mlp.c_proj.bias")};
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      std::size_t equal = 0;
      for (std::size_t k = 0; k < 1024; ++k) equal += masks[i][k] == masks[j][k];
      EXPECT_NEAR(static_cast<double>(equal), 512, 5 * 16) << i << ", " << j;
    }
  }
}

TEST(DropoutLayer, DependsOnSequenceStepSeedAndNameOnly) {
  Rig rig;
  Dropout dropout(0.5, "a"), other_name(0.5, "b");
  const Tensor x = rig.context.make({2, 50}, DType::f32);
  rig.kernels->fill(*rig.stream, x, 1);
  const auto run = [&](Dropout& layer, std::vector<std::int64_t> sequences, std::uint64_t step, std::uint64_t seed) {
    rig.context.sequences = std::move(sequences);
    rig.context.step = step;
    rig.context.seed = seed;
    return floats(rig, layer.forward(rig.context, {x}, nullptr)[0]);
  };
  const auto base = run(dropout, {4, 9}, 1, 5), swapped = run(dropout, {9, 4}, 1, 5);
  EXPECT_EQ(base, run(dropout, {4, 9}, 1, 5));
  EXPECT_TRUE(std::equal(base.begin(), base.begin() + 50, swapped.begin() + 50)) << "a sequence keeps its mask in any row";
  EXPECT_NE(base, swapped);
  EXPECT_NE(base, run(dropout, {4, 9}, 2, 5));
  EXPECT_NE(base, run(dropout, {4, 9}, 1, 6));
  EXPECT_NE(base, run(other_name, {4, 9}, 1, 5));
  for (const float y : base) EXPECT_TRUE(y == 0 || y == 2) << y;
  Record record;
  Tensor constant = x;
  const Tensors ys = dropout.forward(rig.context, {constant}, &record);
  EXPECT_FALSE(ys[0].needs_grad);
  EXPECT_FALSE(dropout.backward(rig.context, std::move(record), ys).at(0)) << "no dx that nobody needs";
  rig.context.training = false;
  EXPECT_EQ(run(dropout, {}, 1, 5), floats(rig, x)) << "off in evaluation";
}

// Nobody needs the input of a layer whose parameters are frozen.
TEST(LinearLayer, AFrozenOneKeepsNothing) {
  for (const bool trains : {false, true}) {
    Rig rig;
    Linear linear(3, 2);
    const PlainParameters storage(linear, rig.context);
    for (const auto& parameter : linear.own_parameters()) parameter->requires_grad = trains;
    Record record;
    Tensor x = rig.normal({2, 3}, "x");
    const Tensors ys = linear.forward(rig.context, {x}, &record);
    x = Tensor();
    const std::int64_t held = rig.activation_bytes();
    linear.backward(rig.context, std::move(record), {rig.normal({2, 2}, "dy")});
    EXPECT_EQ(held, (trains ? 24 : 0) + ys[0].view().bytes());
  }
}

TEST(LayerErrors, SayWhatWasSeenAndExpected) {
  Rig rig;
  const auto text_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  Linear linear(3, 2);
  EXPECT_NE(text_of([&] {
              static_cast<void>(linear.forward(rig.context, {rig.normal({2, 3}, "x")}, nullptr));
            }).find("has no storage"),
            std::string::npos)
      << "a sharded parameter";
  const PlainParameters storage(linear, rig.context);
  EXPECT_NE(text_of([&] {
              static_cast<void>(linear.forward(rig.context, {rig.normal({3, 2}, "x")}, nullptr));
            }).find("has shape [3, 2], expected 3"),
            std::string::npos);
  Tensor low = rig.context.make({2, 3}, DType::bf16);
  EXPECT_NE(text_of([&] { static_cast<void>(linear.forward(rig.context, {low}, nullptr)); }).find("param_dtype"), std::string::npos);
  EXPECT_NE(text_of([&] { static_cast<void>(linear.forward(rig.context, {}, nullptr)); }).find("takes 1 input"), std::string::npos);
  EXPECT_THROW(Dropout(1.0, "d"), ConfigError);
  Dropout dropout(0.5, "d");
  rig.context.sequences = {1};
  EXPECT_NE(text_of([&] {
              static_cast<void>(dropout.forward(rig.context, {rig.normal({2, 3}, "x")}, nullptr));
            }).find("global sequence ids"),
            std::string::npos);
}

}  // namespace
}  // namespace mica::nn
