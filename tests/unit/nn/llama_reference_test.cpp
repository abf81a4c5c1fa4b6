// SPDX-License-Identifier: Apache-2.0
// Llama beside Hugging Face's: tests/reference/make_llama_reference.py says how the numbers were made.
#include <cmath>

#include "mica/nn/models/llama.hpp"

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

/// A Llama with the reference's weights.
struct LlamaRun {
  LlamaRun(const std::string& file_name, KernelsKind kind, DType param_dtype)
      : file(file_name), rig(kind), model(config_of(file)), storage(model, rig.context, param_dtype) {
    model.for_each_parameter(
        [&](const std::string& name, Parameter& p) { rig.kernels->copy(*rig.stream, file.tensor("weight." + name), p.data); });
  }

  static LlamaConfig config_of(const ReferenceFile& file) {
    const auto c = file.metadata("config");
    LlamaConfig config{.layers = c["layers"],
                       .heads = c["heads"],
                       .kv_heads = c["kv_heads"],
                       .head_dim = c["head_dim"],
                       .width = c["width"],
                       .intermediate_size = c["hidden"],
                       .context = c["context"],
                       .vocab_size = c["vocab_size"],
                       .tie_embeddings = c["tied"],
                       .rms_eps = c["rms_eps"]};
    config.rotary.theta = c["rope_theta"];
    if (c["rope_scaling"] == "llama3") {
      config.rotary.scaling = RotaryOptions::Scaling::llama3;
      config.rotary.factor = c["rope_factor"];
      config.rotary.low_freq_factor = c["rope_low_freq_factor"];
      config.rotary.high_freq_factor = c["rope_high_freq_factor"];
      config.rotary.original_context = c["rope_original_context"];
    }
    return config;
  }

  Tensor batch(const std::string& name) {
    const ConstTensorView all = file.tensor(name);
    Tensor out = rig.context.make({all.shape[1], all.shape[2]}, DType::i32);
    rig.kernels->copy(*rig.stream, all.slice(0, out.numel()), out);
    return out;
  }

  double forward_backward() {
    Record record;
    const Tensors ys = model.forward(rig.context, {batch("ids"), batch("targets")}, &record);
    model.backward(rig.context, std::move(record), {rig.scalar(1)});
    return static_cast<double>(floats(rig, ys[0])[0]);
  }

  ReferenceFile file;
  Rig rig;
  Llama model;
  PlainParameters storage;
};

struct LlamaCase {
  std::string file;
  KernelsKind kernels;
  bool checkpointed;
};

class LlamaReference : public ::testing::TestWithParam<LlamaCase> {};

TEST_P(LlamaReference, LogitsLossAndGradientsMatchTransformers) {
  LlamaRun run(GetParam().file, GetParam().kernels, DType::f32);
  run.model.for_each_module([&](const std::string&, Module& module) {
    if (module.type_name() == "llama_block") module.set_checkpointed(GetParam().checkpointed);
  });
  const auto logits = floats(run.rig, run.model.forward(run.rig.context, {run.batch("ids")}, nullptr)[0]);
  const auto* expected_logits = run.file.tensor("logits").as<float>();
  ASSERT_EQ(static_cast<std::int64_t>(logits.size()), run.file.tensor("logits").numel());
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected_logits[i], 1e-4F) << i;
  const double expected = run.file.metadata("loss");
  EXPECT_NEAR(run.forward_backward(), expected, 1e-5 * expected);
  std::size_t compared = 0;
  run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
    EXPECT_LT(relative_max_error(floats(run.rig, p.grad), run.file.tensor("grad." + name)), 1e-4) << name;
    ++compared;
  });
  EXPECT_EQ(run.file.num_tensors(), 3 + 2 * compared) << "ids, targets, logits, weights, gradients";
}

std::vector<LlamaCase> llama_cases() {
  std::vector<LlamaCase> all;
  for (const auto* file : {"llama_tied.safetensors", "llama_untied.safetensors"}) {
    for (const auto kernels : {KernelsKind::reference, KernelsKind::cpu}) {
      for (const bool checkpointed : {false, true}) all.push_back({file, kernels, checkpointed});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, LlamaReference, ::testing::ValuesIn(llama_cases()), [](const auto& info) {
  const LlamaCase& c = info.param;
  return c.file.substr(0, c.file.find('.')) + "_" + testing::to_string(c.kernels) + (c.checkpointed ? "_checkpointed" : "");
});

TEST(LlamaReferenceRotary, FrequenciesAreTransformers) {
  for (const auto* name : {"llama_tied.safetensors", "llama_untied.safetensors"}) {
    const ReferenceFile file(name);
    const LlamaConfig config = LlamaRun::config_of(file);
    const auto expected = file.metadata("inv_freq").get<std::vector<double>>();
    const auto frequencies = rotary_frequencies(config.rotary, config.head_size());
    ASSERT_EQ(frequencies.size(), expected.size());
    // The library computes them in float32, the scaling in several steps.
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(frequencies[i] / expected[i], 1, 1e-6) << name;
  }
}

// See Gpt2ReferenceBf16: 2 blocks with about 2 x (2 x 10 + 4) rounded values behind one another; norms, softmax and the
// gates of these weights magnify by a few.
TEST(LlamaReferenceBf16, LossAndGradientsFollowWithinRounding) {
  const double u = std::exp2(-9);
  const double bound = 5 * u * std::sqrt(48.0);
  for (const auto* file : {"llama_tied.safetensors", "llama_untied.safetensors"}) {
    LlamaRun run(file, KernelsKind::cpu, DType::bf16);
    const double expected = run.file.metadata("loss");
    EXPECT_NEAR(run.forward_backward(), expected, bound * expected);
    double worst = 0;
    run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
      const double error = relative_norm_error(floats(run.rig, p.grad), run.file.tensor("grad." + name));
      EXPECT_LT(error, bound) << name;
      worst = std::max(worst, error);
    });
    EXPECT_GT(worst, u / 4) << "f32 instead of bf16?";
  }
}

}  // namespace
}  // namespace mica::nn
