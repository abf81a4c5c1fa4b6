// SPDX-License-Identifier: Apache-2.0
// Llama's layers: every backward against finite differences on odd shapes, what they compute, what they keep.
#include <cmath>

#include "mica/nn/activation.hpp"
#include "mica/nn/dropout.hpp"
#include "mica/nn/fan_out.hpp"
#include "mica/nn/gradcheck.hpp"
#include "mica/nn/models/llama.hpp"
#include "mica/nn/rms_norm.hpp"
#include "mica/nn/swiglu.hpp"

#include "gradient_checks.hpp"

namespace mica::nn {
namespace {
using testing::floats;
using testing::KernelsKind;
using testing::kTolerance;
using testing::Rig;

class LlamaLayers : public testing::GradientChecks {};

INSTANTIATE_TEST_SUITE_P(Kernels, LlamaLayers, ::testing::Values(KernelsKind::reference, KernelsKind::cpu),
                         [](const auto& info) { return testing::to_string(info.param); });

TEST_P(LlamaLayers, RmsNorm) {
  for (const std::int64_t width : {1, 7, 33}) {
    RmsNorm norm(width, 1e-3);
    check_with_recompute(norm, {rig.normal({3, width}, "x")}, 4 * width - 60);
  }
}

TEST_P(LlamaLayers, SwiGlu) {
  SwiGlu act;
  check_with_recompute(act, {rig.normal({3, 5}, "gate"), rig.normal({3, 5}, "up")}, 30);
  check_with_recompute(act, {rig.normal({3, 5}, "gate", false), rig.normal({3, 5}, "up")}, 15);
  check_with_recompute(act, {rig.normal({3, 5}, "gate"), rig.normal({3, 5}, "up", false)}, 15);
}

TEST_P(LlamaLayers, SwiGluMlp) {
  SwiGluMlp mlp(5, 7);
  check_with_recompute(mlp, {rig.normal({2, 3, 5}, "x")}, 3 * 35 + 30);
  SwiGluMlp behind_a_norm(5, 3);
  Residual residual("r");  // the norm's output is dropped and made again, the sums of dx are added in place
  residual.add<RmsNorm>("norm", 5);
  residual.add<SwiGluMlp>("mlp", 5, 3);
  check_with_recompute(residual, {rig.normal({2, 3, 5}, "x")}, 3 * 15 + 5 + 30);
}

TEST_P(LlamaLayers, GroupedQueryAttention) {
  struct Heads {
    std::int64_t heads, kv_heads, head_dim;
  };
  for (const auto& [heads, kv_heads, head_dim] : {Heads{1, 1, 2}, Heads{4, 2, 4}, Heads{3, 1, 2}, Heads{2, 2, 6}}) {
    GroupedQueryAttention attention({.width = 6, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .rotary = {.theta = 50}});
    check_with_recompute(attention, {rig.normal({2, 5, 6}, "x")}, 60 + 2 * 6 * heads * head_dim - 100);
  }
  Residual residual("r");
  residual.add<RmsNorm>("norm", 6);
  residual.add<GroupedQueryAttention>("attn", GroupedQueryAttentionOptions{.width = 6, .heads = 2, .kv_heads = 1, .head_dim = 2});
  check_with_recompute(residual, {rig.normal({2, 5, 6}, "x")}, 60);
}

TEST_P(LlamaLayers, Llama) {
  for (const bool tied : {true, false}) {
    Llama model({.layers = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .width = 8,
                 .intermediate_size = 7,
                 .context = 7,
                 .vocab_size = 13,
                 .tie_embeddings = tied,
                 .rotary = {.scaling = RotaryOptions::Scaling::llama3, .original_context = 16}});
    rig.context.recompute = tied ? Recompute::cheap : Recompute::none;
    const GradcheckReport report =
        gradcheck(model, rig.context, {rig.tokens({2, 5}, 13), rig.tokens({2, 5}, 13, "targets")}, {.max_elements = 12});
    EXPECT_LT(report.worst_error, kTolerance) << report.worst_element << " tied " << tied;
    EXPECT_GT(report.num_checked, 200);
  }
}

/// Some modules on one input, their outputs summed.
class Fan final : public Module {
 public:
  Fan() : Module("fan") {}
  template <class M, class... Args>
  M& add(const std::string& name, Args&&... args) {
    M& module = add_child<M>(name, std::forward<Args>(args)...);
    fan_.push_back(&module);
    return module;
  }

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override {
    Tensors ys = fan_out_forward(context, fan_, xs[0], child_record(record));
    const Tensor sum = context.make(ys[0].shape(), ys[0].dtype());
    context.kernels.fill(context.compute, sum, 0);
    Tensor out = sum;
    for (const Tensor& y : ys) {
      context.kernels.add(context.compute, sum, y, sum);
      out.needs_grad = out.needs_grad || y.needs_grad;
      needs_.push_back(y.needs_grad);
    }
    return list_of(out);
  }
  Tensors do_backward(Context& context, Record& record, Tensors dys) override {
    Tensors each;
    for (std::size_t i = 0; i < fan_.size(); ++i) each.push_back(needs_[i] ? dys[0] : Tensor());
    dys.clear();
    return list_of(fan_out_backward(context, fan_, record.child(0), std::move(each)));
  }
  Tensor* do_saved_input(Record& record) override { return fan_out_saved_input(record.child(0)); }

  std::vector<Module*> fan_;
  std::vector<bool> needs_;
};

TEST_P(LlamaLayers, ModulesOnOneInputSumTheirGradients) {
  Fan fan;
  fan.add<Linear>("a", 5, 4);
  fan.add<Linear>("b", 5, 4, LinearOptions{.bias = false});
  auto& two = fan.add<Sequential>("c");
  two.add<Linear>("up", 5, 3);
  two.add<Gelu>("act");
  two.add<Linear>("down", 3, 4);
  check_with_recompute(fan, {rig.normal({3, 5}, "x")}, 20 + 20 + 15);
  check_with_recompute(fan, {rig.normal({3, 5}, "x", false)}, 20 + 20);
  Residual behind_a_norm("r");
  behind_a_norm.add<RmsNorm>("norm", 4);
  auto& inner = behind_a_norm.add<Fan>("fan");
  inner.add<Linear>("a", 4, 4);
  inner.add<SwiGluMlp>("b", 4, 3);
  inner.add<Residual>("c", "r");  // 2 x: its dx is dy's memory or its sum, not the sum of the others
  check_with_recompute(behind_a_norm, {rig.normal({3, 4}, "x")}, 16 + 3 * 12 + 12);
}

/// The first gradient is the caller's own tensor, the third is added in place, the last is not.
TEST_P(LlamaLayers, ModulesOnOneInputThatSumTheirGradientsInDifferentWays) {
  Fan fan;
  fan.add<Dropout>("identity", 0.0, "identity");
  fan.add<Linear>("a", 4, 4);
  fan.add<Linear>("b", 4, 4);
  fan.add<SwiGluMlp>("c", 4, 3);
  check_with_recompute(fan, {rig.normal({3, 4}, "x")}, 2 * 20 + 3 * 12 + 12);
}

TEST_P(LlamaLayers, ModulesOnOneInputOfWhichSomeAreFrozen) {
  for (const std::string frozen : {"a", "b", "ab"}) {
    Fan fan;
    for (const char* name : {"a", "b"}) {
      auto& linear = fan.add<Linear>(name, 5, 4, LinearOptions{.bias = false});
      linear.own_parameters()[0]->requires_grad = frozen.find(name) == std::string::npos;
    }
    check_with_recompute(fan, {rig.normal({3, 5}, "x")}, 15);
    if (frozen != "ab") check_with_recompute(fan, {rig.normal({3, 5}, "x", false)}, 20);
  }
}

TEST(LlamaRecords, OneRecordServesSeveralBackwards) {
  Rig rig;
  LlamaBlock block({.heads = 4, .kv_heads = 2, .width = 8, .intermediate_size = 5});
  PlainParameters storage(block, rig.context);
  const Tensor x = rig.normal({2, 3, 8}, "x"), dy = rig.normal({2, 3, 8}, "dy");
  Record record;
  record.keep();
  static_cast<void>(block.forward(rig.context, {x}, &record));
  const Tensors first = block.backward(rig.context, std::move(record), {dy});
  const auto dx = floats(rig, first[0]);
  const auto once = testing::gradients(rig, block);
  storage.zero_grad();
  const Tensors second = block.backward(rig.context, std::move(record), {dy});
  EXPECT_EQ(floats(rig, second[0]), dx);
  EXPECT_EQ(testing::gradients(rig, block), once);
}

TEST(LlamaRecords, EachParameterAloneTrainsAsWithTheOthers) {
  const auto run = [](const std::string& alone) {
    Rig rig;
    LlamaBlock block({.heads = 4, .kv_heads = 2, .width = 8, .intermediate_size = 5});
    const PlainParameters storage(block, rig.context);
    block.for_each_parameter([&](const std::string& name, Parameter& p) { p.requires_grad = alone.empty() || name == alone; });
    Record record;
    const Tensors ys = block.forward(rig.context, {rig.normal({2, 3, 8}, "x", false)}, &record);
    EXPECT_TRUE(ys[0].needs_grad);
    const Tensors dxs = block.backward(rig.context, std::move(record), {rig.normal({2, 3, 8}, "dy")});
    EXPECT_FALSE(dxs.at(0)) << "no dx that nobody needs";
    return testing::gradients(rig, block);
  };
  const auto together = run("");
  ASSERT_EQ(together.size(), 9U);
  for (const auto& gradient : together) EXPECT_EQ(run(gradient.name), decltype(together){gradient}) << gradient.name;
}

TEST(LlamaRecords, ACheckpointedBlockGivesTheSameBits) {
  const auto run = [](bool checkpointed) {
    Rig rig;
    LlamaBlock block({.heads = 4, .kv_heads = 2, .width = 8, .intermediate_size = 5});
    block.set_checkpointed(checkpointed);
    const PlainParameters storage(block, rig.context);
    Record record;
    static_cast<void>(block.forward(rig.context, {rig.normal({2, 3, 8}, "x")}, &record));
    const Tensors dxs = block.backward(rig.context, std::move(record), {rig.normal({2, 3, 8}, "dy")});
    return std::pair{floats(rig, dxs[0]), testing::gradients(rig, block)};
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Rotary, DefaultFrequencies) {
  const auto f = rotary_frequencies({.theta = 10000}, 8);
  const std::vector<double> expected{1, 0.1, 0.01, 0.001};
  ASSERT_EQ(f.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(f[i] / expected[i], 1, 1e-14);
}

// By hand, with 2 pi turns in the original context: frequencies are turns.
TEST(Rotary, Llama3KeepsFastTurnsAndSlowsSlowOnes) {
  const RotaryOptions options{.theta = 10000,
                              .scaling = RotaryOptions::Scaling::llama3,
                              .factor = 8,
                              .low_freq_factor = 1,
                              .high_freq_factor = 4,
                              .original_context = 200};
  const auto plain = rotary_frequencies({.theta = 10000}, 8), scaled = rotary_frequencies(options, 8);
  // Turns in 200 tokens: 31.8, 3.18, 0.318, 0.0318.
  EXPECT_EQ(scaled[0], plain[0]);
  const double kept = (20 / (2 * M_PI) - 1) / 3;
  EXPECT_NEAR(scaled[1], 0.1 * (kept + (1 - kept) / 8), 1e-15);
  EXPECT_EQ(scaled[2], plain[2] / 8);
  EXPECT_EQ(scaled[3], plain[3] / 8);
}

TEST(LlamaLayerErrors, SayWhatWasSeenAndExpected) {
  const auto text_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto attention = [&](GroupedQueryAttentionOptions options) { return text_of([&] { GroupedQueryAttention layer(options); }); };
  EXPECT_NE(attention({.width = 4, .heads = 4, .kv_heads = 3, .head_dim = 2}).find("model.heads 4 is not divisible by model.kv_heads 3"),
            std::string::npos);
  EXPECT_NE(attention({.width = 4, .heads = 4, .kv_heads = 2, .head_dim = 3}).find("the head size is 3, expected an even"),
            std::string::npos);
  Rig rig;
  SwiGlu act;
  EXPECT_NE(text_of([&] {
              static_cast<void>(act.forward(rig.context, {rig.normal({2, 3}, "a"), rig.normal({2, 4}, "b")}, nullptr));
            }).find("[2, 3] fp32 and [2, 4] fp32, expected two of one shape"),
            std::string::npos);
}

}  // namespace
}  // namespace mica::nn
