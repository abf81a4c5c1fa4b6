// SPDX-License-Identifier: Apache-2.0
// Models of f32 features with a loss as their head: gradients, predictions, and what they refuse.
#include <gmock/gmock.h>

#include "mica/nn/activation.hpp"
#include "mica/nn/gradcheck.hpp"
#include "mica/nn/head_loss.hpp"
#include "mica/nn/language_model.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/losses.hpp"
#include "mica/nn/sequential.hpp"
#include "mica/nn/supervised_model.hpp"

#include "gradient_checks.hpp"

namespace mica::nn {
namespace {

using testing::floats;
using ::testing::HasSubstr;
using testing::KernelsKind;
using testing::Rig;

constexpr std::int64_t kFeatures = 7;

/// A model of f32 features with any head. (No ReLU: finite differences are wrong where they step over its corner.)
template <class Head>
class Perceptron final : public SupervisedModel {
 public:
  explicit Perceptron(std::int64_t outputs) : SupervisedModel("perceptron") {
    add_body<Linear>("in", kFeatures, 6);
    add_body<Tanh>("tanh");
    Residual& block = add_body<Residual>("block", "perceptron_block");
    block.add<LayerNorm>("norm", 6);
    block.add<Linear>("up", 6, 9);
    block.add<Silu>("silu");
    block.add<Linear>("down", 9, 6);
    if constexpr (std::is_same_v<Head, HeadLoss>) {
      set_head<HeadLoss>("head", outputs, 6);
    } else {
      add_body<Linear>("out", 6, outputs);
      set_head<Head>("loss");
    }
  }
};

class Supervised : public testing::GradientChecks {
 protected:
  [[nodiscard]] std::string refusal_of(Module& module, const Tensors& xs) {
    try {
      static_cast<void>(module.forward(rig.context, xs, nullptr));
      rig.stream->synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, Supervised, ::testing::Values(KernelsKind::reference, KernelsKind::cpu),
                         [](const auto& info) { return testing::to_string(info.param); });

TEST_P(Supervised, ActivationsAlone) {
  Relu relu;
  Tensor x = rig.normal({3, 5}, "x");
  for (std::int64_t i = 0; i < x.numel(); ++i) x.view().as<float>()[i] += x.view().as<float>()[i] < 0 ? -0.1F : 0.1F;  // off its corner
  check_with_recompute(relu, {x}, 15);
  Silu silu;
  check_with_recompute(silu, {rig.normal({3, 5}, "x")}, 15);
  Tanh tanh;
  check_with_recompute(tanh, {rig.normal({3, 5}, "x")}, 15);
}

TEST_P(Supervised, LossesAlone) {
  MseLoss mse;
  check_with_recompute(mse, {rig.normal({3, 5}, "x"), rig.normal({3, 5}, "t", /*needs_grad=*/false)}, 15);
  BceWithLogitsLoss bce;
  check_with_recompute(bce, {rig.normal({3, 5}, "x"), rig.normal({3, 5}, "t", false)}, 15);
  CrossEntropyLoss cross_entropy;
  Tensor classes = rig.tokens({2, 3}, 5, "classes");
  check_with_recompute(cross_entropy, {rig.normal({2, 3, 5}, "x"), classes}, 30);
  classes.view().as<std::int32_t>()[4] = -100;
  check_with_recompute(cross_entropy, {rig.normal({2, 3, 5}, "x"), classes}, 30);
}

TEST_P(Supervised, ModelsOfFeatures) {
  Perceptron<CrossEntropyLoss> classifier(4);
  check_with_recompute(classifier, {rig.normal({5, kFeatures}, "x"), rig.tokens({5}, 4, "classes")}, 200);
  Perceptron<MseLoss> regression(2);
  check_with_recompute(regression, {rig.normal({5, kFeatures}, "x"), rig.normal({5, 2}, "t", false)}, 200);
  Perceptron<BceWithLogitsLoss> labels(3);
  check_with_recompute(labels, {rig.normal({5, kFeatures}, "x", false), rig.normal({5, 3}, "t", false)}, 160);
  Perceptron<HeadLoss> vocabulary(11);
  check_with_recompute(vocabulary, {rig.normal({5, kFeatures}, "x"), rig.tokens({5}, 11, "classes")}, 200);
}

TEST_P(Supervised, WithoutTargetsThePredictionComesBackAndTakesAGradient) {
  Perceptron<CrossEntropyLoss> model(4);
  PlainParameters storage(model, rig.context);
  const Tensor x = rig.normal({5, kFeatures}, "x");
  Record record;
  const Tensors logits = model.forward(rig.context, {x}, &record);
  ASSERT_EQ(logits.size(), 1U);
  EXPECT_EQ(logits[0].shape(), (Shape{5, 4}));

  // A loss of one's own behind the model is the model's.
  CrossEntropyLoss loss;
  const Tensor classes = rig.tokens({5}, 4, "classes");
  Record of_loss;
  const Tensors value = loss.forward(rig.context, {logits[0], classes}, &of_loss);
  Tensors dys = loss.backward(rig.context, std::move(of_loss), {rig.scalar(1)});
  dys.resize(1);
  const Tensors dxs = model.backward(rig.context, std::move(record), std::move(dys));
  const auto outside = testing::gradients(rig, model);
  const std::vector<float> dx_outside = floats(rig, dxs[0]);

  storage.zero_grad();
  Record whole;
  const Tensors inside = model.forward(rig.context, {x, classes}, &whole);
  const Tensors dxs_inside = model.backward(rig.context, std::move(whole), {rig.scalar(1)});
  EXPECT_EQ(floats(rig, inside[0]), floats(rig, value[0]));
  EXPECT_EQ(testing::gradients(rig, model), outside);
  ASSERT_EQ(dxs_inside.size(), 2U);
  EXPECT_EQ(floats(rig, dxs_inside[0]), dx_outside);
  EXPECT_FALSE(dxs_inside[1]);
}

TEST_P(Supervised, LossesSayWhatDoesNotFit) {
  MseLoss mse;
  EXPECT_THAT(refusal_of(mse, {rig.normal({4, 1}, "x"), rig.normal({4}, "t")}),
              HasSubstr("a 'mse_loss' have shapes [4, 1] (outputs) and [4] (targets), expected the same"));
  EXPECT_THAT(refusal_of(mse, {rig.normal({4}, "x"), rig.tokens({4}, 3)}), HasSubstr("takes targets as f32"));
  CrossEntropyLoss cross_entropy;
  EXPECT_THAT(refusal_of(cross_entropy, {rig.normal({4, 3}, "x"), rig.normal({4}, "t")}), HasSubstr("takes class ids as int32, got fp32"));
  EXPECT_THAT(refusal_of(cross_entropy, {rig.normal({4, 3}, "x"), rig.tokens({5}, 3)}), HasSubstr("expected a target for each row"));
  EXPECT_THAT(refusal_of(cross_entropy, {}), HasSubstr("takes 2 input tensor(s), got 0"));
  /// No head.
  struct Headless final : SupervisedModel {
    Headless() : SupervisedModel("headless") {}
  } headless;
  EXPECT_THAT(refusal_of(headless, {rig.normal({4, 3}, "x")}), HasSubstr("a 'headless' has no head: call set_head()"));
  /// A language model takes token ids.
  struct Words final : LanguageModel {
    Words() : LanguageModel("words") {}
  } words;
  EXPECT_THAT(refusal_of(words, {rig.normal({4, 3}, "x")}), HasSubstr("a 'words' takes token ids as int32, got fp32"));
}

TEST(SupervisedErrors, AClassThatTheModelDoesNotHaveIsNamed) {
  Rig rig;
  CrossEntropyLoss loss;
  Tensor classes = rig.tokens({4}, 3, "classes");
  classes.view().as<std::int32_t>()[2] = 3;
  try {
    static_cast<void>(loss.forward(rig.context, {rig.normal({4, 3}, "x"), classes}, nullptr));
    rig.stream->synchronize();
    ADD_FAILURE() << "class 3 of 3 was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("target 3 in row 2 is not one of the 3 classes [0, 3) and not -100 (ignored)"));
  }
}

}  // namespace
}  // namespace mica::nn
