// SPDX-License-Identifier: Apache-2.0
// Activations and losses against PyTorch (tests/reference/make_losses_reference.py).
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "mica/nn/activation.hpp"
#include "mica/nn/losses.hpp"

#include "nn_testing.hpp"
#include "support/paths.hpp"

namespace mica::nn {
namespace {

using testing::floats;
using testing::KernelsKind;
using testing::Rig;
using Numbers = std::vector<float>;

constexpr std::int64_t kRows = 5, kClasses = 4;

class LossesReference : public ::testing::TestWithParam<KernelsKind> {
 protected:
  LossesReference() {
    std::ifstream file(test::reference_path("losses.txt"));
    for (std::string text; std::getline(file, text);) {
      std::istringstream line(text);
      std::string name;
      line >> name;
      for (std::string word; line >> word;) numbers_[name].push_back(std::strtof(word.c_str(), nullptr));
    }
  }
  [[nodiscard]] const Numbers& numbers(const std::string& name) const { return numbers_.at(name); }
  [[nodiscard]] Tensor tensor(Shape shape, const std::string& name, DType dtype = DType::f32) {
    Tensor t = rig.context.make(shape, dtype);
    rig.stream->synchronize();
    const Numbers& values = numbers(name);
    if (dtype == DType::f32) std::ranges::copy(values, t.view().as<float>());
    if (dtype == DType::i32)
      std::ranges::transform(values, t.view().as<std::int32_t>(), [](float v) { return static_cast<std::int32_t>(v); });
    return t;
  }
  void expect_near(const ConstTensorView& seen, const std::string& name) {
    const Numbers got = floats(rig, seen), &expected = numbers(name);
    ASSERT_EQ(got.size(), expected.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], 1e-6F + 2e-6F * std::abs(expected[i])) << name << " element " << i;
    }
  }
  Rig rig{GetParam()};

 private:
  std::map<std::string, Numbers> numbers_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, LossesReference, ::testing::Values(KernelsKind::reference, KernelsKind::cpu),
                         [](const auto& info) { return testing::to_string(info.param); });

TEST_P(LossesReference, ActivationsArePyTorchs) {
  Gelu gelu;
  Relu relu;
  Silu silu;
  Tanh tanh;
  const auto n = static_cast<std::int64_t>(numbers("x").size());
  for (Module* layer : std::initializer_list<Module*>{&gelu, &relu, &silu, &tanh}) {
    Tensor x = tensor({n}, "x");
    x.needs_grad = true;
    Record record;
    const Tensors ys = layer->forward(rig.context, {x}, &record);
    const Tensors dxs = layer->backward(rig.context, std::move(record), {tensor({n}, "dy")});
    expect_near(ys[0], layer->type_name());
    expect_near(dxs[0], layer->type_name() + "_gradient");
  }
}

TEST_P(LossesReference, LossesArePyTorchs) {
  MseLoss mse;
  BceWithLogitsLoss bce;
  CrossEntropyLoss cross_entropy;
  for (Module* loss : std::initializer_list<Module*>{&mse, &bce, &cross_entropy}) {
    Tensor logits = tensor({kRows, kClasses}, "logits");
    logits.needs_grad = true;
    const Tensor targets = loss == &cross_entropy ? tensor({kRows}, "classes", DType::i32) : tensor({kRows, kClasses}, "targets");
    Record record;
    const Tensors value = loss->forward(rig.context, {logits, targets}, &record);
    const Tensors dxs = loss->backward(rig.context, std::move(record), {rig.scalar(1)});
    expect_near(value[0], loss->type_name());
    expect_near(dxs[0], loss->type_name() + "_gradient");
    EXPECT_FALSE(dxs[1]) << "targets have no gradient";
  }
}

TEST_P(LossesReference, CrossEntropyOfIgnoredRowsAloneIsNaN) {
  CrossEntropyLoss loss(/*ignore_index=*/7);
  Tensor targets = tensor({kRows}, "classes", DType::i32);
  std::fill_n(targets.view().as<std::int32_t>(), kRows, 7);
  const Tensors value = loss.forward(rig.context, {tensor({kRows, kClasses}, "logits"), targets}, nullptr);
  EXPECT_TRUE(std::isnan(numbers("cross_entropy_loss_of_nothing").at(0)));
  EXPECT_TRUE(std::isnan(floats(rig, value[0])[0]));
}

}  // namespace
}  // namespace mica::nn
