// SPDX-License-Identifier: Apache-2.0
// GPT-2 beside PyTorch: tests/reference/make_gpt2_reference.py says how the numbers were made.
#include <cmath>

#include "mica/nn/models/gpt2.hpp"

#include "nn_testing.hpp"
#include "support/reference_file.hpp"

namespace mica::nn {
namespace {
using mica::testing::ReferenceFile;
using testing::floats;
using testing::KernelsKind;
using testing::relative_max_error;
using testing::relative_norm_error;
using testing::Rig;

/// A GPT-2 with the reference's weights.
struct ReferenceRun {
  ReferenceRun(const std::string& file_name, KernelsKind kind, DType param_dtype)
      : file(file_name), rig(kind), model(config_of(file)), storage(model, rig.context, param_dtype) {
    model.for_each_parameter(
        [&](const std::string& name, Parameter& p) { rig.kernels->copy(*rig.stream, file.tensor("weight." + name), p.data); });
  }

  static Gpt2Config config_of(const ReferenceFile& file) {
    const auto c = file.metadata("config");
    return {.layers = c["layers"],
            .heads = c["heads"],
            .width = c["width"],
            .context = c["context"],
            .vocab_size = c["vocab_size"],
            .tie_embeddings = c["tied"]};
  }

  /// Batch `step` of a [steps, B, T] tensor.
  Tensor batch(const std::string& name, std::int64_t step) {
    const ConstTensorView all = file.tensor(name);
    Tensor out = rig.context.make({all.shape[1], all.shape[2]}, DType::i32);
    rig.kernels->copy(*rig.stream, all.slice(step * out.numel(), out.numel()), out);
    return out;
  }

  double forward_backward(std::int64_t step) {
    Record record;
    const Tensors ys = model.forward(rig.context, {batch("ids", step), batch("targets", step)}, &record);
    model.backward(rig.context, std::move(record), {rig.scalar(1)});
    return static_cast<double>(floats(rig, ys[0])[0]);
  }

  ReferenceFile file;
  Rig rig;
  Gpt2 model;
  PlainParameters storage;
};

struct Case {
  std::string file;
  KernelsKind kernels;
  bool loss_in_backward;
  bool checkpointed;
};

class Gpt2Reference : public ::testing::TestWithParam<Case> {};

TEST_P(Gpt2Reference, LossAndGradientsMatchPyTorch) {
  ReferenceRun run(GetParam().file, GetParam().kernels, DType::f32);
  run.rig.context.loss_in_backward = GetParam().loss_in_backward;
  run.model.for_each_module([&](const std::string&, Module& module) {
    if (module.type_name() == "gpt2_block") module.set_checkpointed(GetParam().checkpointed);
  });
  const double expected = run.file.metadata("loss");
  EXPECT_NEAR(run.forward_backward(0), expected, 1e-5 * expected);
  std::size_t compared = 0;
  run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
    EXPECT_LT(relative_max_error(floats(run.rig, p.grad), run.file.tensor("grad." + name)), 1e-4) << name;
    ++compared;
  });
  // ids, targets, weights, gradients; the tied file also has the parameters after SGD.
  EXPECT_EQ(run.file.num_tensors(), 2 + compared * (run.model.config().tie_embeddings ? 3 : 2));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto* file : {"gpt2_tied.safetensors", "gpt2_untied.safetensors"}) {
    for (const auto kernels : {KernelsKind::reference, KernelsKind::cpu}) {
      for (const bool loss_in_backward : {false, true}) {
        for (const bool checkpointed : {false, true}) all.push_back({file, kernels, loss_in_backward, checkpointed});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Gpt2Reference, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  return c.file.substr(0, c.file.find('.')) + "_" + testing::to_string(c.kernels) + (c.loss_in_backward ? "_loss_in_backward" : "") +
         (c.checkpointed ? "_checkpointed" : "");
});

// bf16 rounds to 8 bits: a relative error of at most u = 2^-9 each time. Weights and every activation and gradient on
// the way are rounded once: with 2 blocks about 2 x (2 x 8 + 4) values behind one another, whose errors add like random
// ones: u * sqrt(40) = 1.2 %. Norms and the softmax of these weights (deviation 0.3) magnify by a few: 4 u sqrt(40).
TEST(Gpt2ReferenceBf16, LossAndGradientsFollowWithinRounding) {
  const double u = std::exp2(-9);
  const double bound = 4 * u * std::sqrt(40.0);
  for (const auto kernels : {KernelsKind::reference, KernelsKind::cpu}) {
    for (const auto* file : {"gpt2_tied.safetensors", "gpt2_untied.safetensors"}) {
      ReferenceRun run(file, kernels, DType::bf16);
      const double expected = run.file.metadata("loss");
      EXPECT_NEAR(run.forward_backward(0), expected, bound * expected);
      double worst = 0;
      run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
        const double error = relative_norm_error(floats(run.rig, p.grad), run.file.tensor("grad." + name));
        EXPECT_LT(error, bound) << name;
        worst = std::max(worst, error);
      });
      EXPECT_GT(worst, u / 4) << "f32 instead of bf16?";
      RecordProperty(std::string("worst_") + file + testing::to_string(kernels), std::to_string(worst));
    }
  }
}

TEST(Gpt2ReferenceSteps, SgdWithMomentumGivesPyTorchsLossesAndParameters) {
  ReferenceRun run("gpt2_tied.safetensors", KernelsKind::cpu, DType::f32);
  const auto sgd = run.file.metadata("sgd");
  std::vector<Tensor> momenta;
  run.model.for_each_parameter([&](const std::string&, Parameter& p) { momenta.push_back(run.rig.context.make(p.shape, DType::f32)); });
  for (std::int64_t step = 0; step < 5; ++step) {
    const double expected = sgd["losses"][static_cast<std::size_t>(step)];
    EXPECT_NEAR(run.forward_backward(step), expected, 1e-4 * expected) << "step " << step;
    std::size_t i = 0;
    run.model.for_each_parameter([&](const std::string&, Parameter& p) {
      run.rig.kernels->sgd(*run.rig.stream, {.param = p.data,
                                             .grad = p.grad,
                                             .momentum_buffer = momenta[i++],
                                             .lr = sgd["lr"],
                                             .momentum = sgd["momentum"],
                                             .weight_decay = p.weight_decay ? sgd["weight_decay"].get<double>() : 0.0,
                                             .first_step = step == 0});
    });
    run.storage.zero_grad();
  }
  run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
    EXPECT_LT(relative_max_error(floats(run.rig, p.data), run.file.tensor("sgd." + name)), 1e-4) << name;
  });
}

TEST(Gpt2ReferenceSteps, ClippedAdamWGivesPyTorchsLosses) {
  for (const auto* file : {"gpt2_tied.safetensors", "gpt2_untied.safetensors"}) {
    ReferenceRun run(file, KernelsKind::cpu, DType::f32);
    Kernels& kernels = *run.rig.kernels;
    Stream& stream = *run.rig.stream;
    const auto adamw = run.file.metadata("adamw");
    std::vector<Tensor> states;
    run.model.for_each_parameter([&](const std::string&, Parameter& p) {
      for (int i = 0; i < 2; ++i) {
        states.push_back(run.rig.context.make(p.shape, DType::f32));
        kernels.fill(stream, states.back(), 0);
      }
    });
    const Tensor sum = run.rig.scalar(0), norm = run.rig.scalar(0), coefficient = run.rig.scalar(0);
    for (std::int64_t step = 0; step < 5; ++step) {
      const double expected = adamw["losses"][static_cast<std::size_t>(step)];
      EXPECT_NEAR(run.forward_backward(step), expected, 1e-4 * expected) << file << " step " << step;
      kernels.fill(stream, sum, 0);
      run.model.for_each_parameter([&](const std::string&, Parameter& p) { kernels.power_sum(stream, p.grad, 2, sum, Write::accumulate); });
      kernels.clip_coefficient(stream, sum, 2, adamw["grad_clip"], norm, coefficient);
      const double expected_norm = adamw["grad_norms"][static_cast<std::size_t>(step)];
      EXPECT_NEAR(static_cast<double>(floats(run.rig, norm)[0]), expected_norm, 1e-4 * expected_norm) << file;
      std::size_t i = 0;
      run.model.for_each_parameter([&](const std::string&, Parameter& p) {
        kernels.adamw(stream, {.param = p.data,
                               .grad = p.grad,
                               .exp_avg = states[2 * i],
                               .exp_avg_sq = states[2 * i + 1],
                               .lr = adamw["lr"],
                               .beta1 = adamw["beta1"],
                               .beta2 = adamw["beta2"],
                               .eps = adamw["eps"],
                               .weight_decay = p.weight_decay ? adamw["weight_decay"].get<double>() : 0.0,
                               .step = step + 1,
                               .grad_scale = coefficient});
        ++i;
      });
      run.storage.zero_grad();
    }
  }
}

}  // namespace
}  // namespace mica::nn
