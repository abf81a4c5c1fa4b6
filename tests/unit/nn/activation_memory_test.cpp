// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/activation.hpp"

#include "activation_bytes.hpp"
#include "nn_testing.hpp"

namespace mica::nn {
namespace {
using testing::activation_bytes;
using testing::ActivationBytes;
using testing::ActivationOptions;
using testing::Rig;

struct Measured {
  std::int64_t saved, forward_peak, backward_peak;
};

Measured measure(Module& model, const ActivationOptions& options, std::int64_t batch, std::int64_t seq_len, bool loss_in_backward) {
  Rig rig;
  rig.context.loss_in_backward = loss_in_backward;
  rig.context.recompute = options.recompute;
  rig.use_batch(batch);
  const PlainParameters storage(model, rig.context, options.dtype);
  const Tensor ids = rig.tokens({batch, seq_len}, 11), targets = rig.tokens({batch, seq_len}, 11, "targets");
  const Tensor dloss = rig.scalar(1);
  const std::int64_t before = rig.activation_bytes();
  const auto peak = [&] { return rig.pool->stats().peak_of(MemoryRole::activation) - before; };

  Measured measured{};
  Record record;
  rig.pool->reset_peak();
  const Tensors ys = model.forward(rig.context, {ids, targets}, &record);
  measured.saved = rig.activation_bytes() - before;
  measured.forward_peak = peak();
  rig.pool->reset_peak();
  model.backward(rig.context, std::move(record), {dloss});
  measured.backward_peak = peak();
  EXPECT_EQ(rig.activation_bytes() - before, 4) << "only the loss is left";
  return measured;
}

void set_checkpointed(Module& model, const std::string& type_name) {
  model.for_each_module([&](const std::string&, Module& module) {
    if (module.type_name() == type_name) module.set_checkpointed(true);
  });
}

void expect_equal(const Measured& measured, const ActivationBytes& formula, const std::string& what) {
  EXPECT_EQ(measured.saved, formula.saved) << what;
  EXPECT_EQ(measured.forward_peak, formula.forward_peak) << what;
  EXPECT_EQ(measured.backward_peak, formula.backward_peak) << what;
}

/// Every way to run a model.
std::vector<ActivationOptions> all_options() {
  std::vector<ActivationOptions> all;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool checkpointed : {false, true}) {
      for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
        all.push_back({.dtype = dtype, .checkpointed = checkpointed, .recompute = recompute});
      }
    }
  }
  return all;
}

std::string to_string(const ActivationOptions& options) {
  return fmt::format("{}, checkpointed {}, recompute {}", dtype_name(options.dtype), options.checkpointed,
                     options.recompute == Recompute::none ? "none" : "cheap");
}

TEST(ActivationMemory, Gpt2FollowsTheFormula) {
  int cases = 0;
  for (const std::int64_t layers : {0, 1, 3}) {
    for (const ActivationOptions& options : all_options()) {
      for (const double dropout : {0.0, 0.1}) {
        const Gpt2Config config{.layers = layers, .heads = 2, .width = 6, .context = 9, .vocab_size = 11, .dropout = dropout};
        Gpt2 model(config);
        if (options.checkpointed) set_checkpointed(model, "gpt2_block");
        expect_equal(measure(model, options, 3, 7, cases % 2 == 0), activation_bytes(config, 3, 7, options),
                     fmt::format("{} layers, {}, dropout {}", layers, to_string(options), dropout));
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 48);
}

// Counted by hand: 2 layers, C 4, 2 heads, 3 rows, f32: A = 48, statistics of a norm 24, log-sum-exps 24 bytes.
TEST(ActivationMemory, Gpt2LiteralBytes) {
  Gpt2 model({.layers = 2, .heads = 2, .width = 4, .context = 3, .vocab_size = 11});
  const Measured kept = measure(model, {}, 1, 3, true);
  EXPECT_EQ(kept.saved, 2 * (768 + 48 + 24) + 96 + 24 + 4);
  EXPECT_EQ(kept.forward_peak, 2 * 840 + 124);
  EXPECT_EQ(kept.backward_peak, 2 * 840 + 124 + 48);
  const Measured made_again = measure(model, {.recompute = Recompute::cheap}, 1, 3, true);
  EXPECT_EQ(made_again.saved, 2 * (480 + 48 + 24) + 96 + 24 + 4);
  EXPECT_EQ(made_again.forward_peak, 2 * 552 + 288);
  EXPECT_EQ(made_again.backward_peak, 2 * 552 + 288 + 4);
}

// A checkpointed block's second forward keeps everything whatever the policy: its backward comes at once.
TEST(ActivationMemory, Gpt2LiteralBytesOfCheckpointedBlocks) {
  Gpt2 model({.layers = 2, .heads = 2, .width = 4, .context = 3, .vocab_size = 11});
  set_checkpointed(model, "gpt2_block");
  for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
    const Measured measured = measure(model, {.checkpointed = true, .recompute = recompute}, 1, 3, true);
    EXPECT_EQ(measured.saved, 2 * 48 + 96 + 24 + 4);
    EXPECT_EQ(measured.forward_peak, 2 * 48 + 288);
    EXPECT_EQ(measured.backward_peak, 48 + 840 + 2 * 48 + 4);
  }
}

// A frozen prefix has no backward: its blocks keep nothing, checkpointed or not. As above with one block.
TEST(ActivationMemory, Gpt2LiteralBytesOfAFrozenPrefix) {
  for (const bool checkpoints_prefix : {false, true}) {
    Gpt2 model({.layers = 2, .heads = 2, .width = 4, .context = 3, .vocab_size = 11, .tie_embeddings = false});
    model.for_each_module([&](const std::string& name, Module& module) {
      const bool is_prefix = name == "transformer.h.0";
      if (is_prefix || name == "transformer.h.1") module.set_checkpointed(checkpoints_prefix || !is_prefix);
    });
    model.for_each_parameter([](const std::string& name, Parameter& parameter) {
      parameter.requires_grad = !name.starts_with("transformer.w") && !name.starts_with("transformer.h.0.");
    });
    const Measured measured = measure(model, {.checkpointed = true}, 1, 3, true);
    EXPECT_EQ(measured.saved, 48 + 96 + 24 + 4) << checkpoints_prefix;
    EXPECT_EQ(measured.forward_peak, 48 + 288) << checkpoints_prefix;
    EXPECT_LE(measured.backward_peak, 840 + 2 * 48 + 4) << checkpoints_prefix;
  }
}

TEST(ActivationMemory, LlamaFollowsTheFormula) {
  struct Sizes {
    std::int64_t heads, kv_heads, head_dim, hidden;
  };
  // Wide and narrow MLPs, queries wider than the model.
  for (const auto& [heads, kv_heads, head_dim, hidden] :
       {Sizes{2, 1, 0, 9}, Sizes{6, 2, 4, 1}, Sizes{1, 1, 2, 5}, Sizes{4, 4, 6, 40}, Sizes{8, 8, 8, 2}}) {
    for (const std::int64_t layers : {0, 1, 3}) {
      for (const ActivationOptions& options : all_options()) {
        const LlamaConfig config{.layers = layers,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .width = 8,
                                 .intermediate_size = hidden,
                                 .context = 9,
                                 .vocab_size = 11};
        Llama model(config);
        if (options.checkpointed) set_checkpointed(model, "llama_block");
        expect_equal(measure(model, options, 3, 7, layers == 1), activation_bytes(config, 3, 7, options),
                     fmt::format("{} layers, {} heads, hidden {}, {}", layers, heads, hidden, to_string(options)));
      }
    }
  }
}

// Counted by hand: 2 layers, 3 rows, C 4, 2 heads of 2, 1 key and value head, hidden 5, f32: A = Q = 48, K = 24, F =
// 60, the statistic of a norm 12, log-sum-exps 24 bytes.
TEST(ActivationMemory, LlamaLiteralBytes) {
  Llama model({.layers = 2, .heads = 2, .kv_heads = 1, .width = 4, .intermediate_size = 5, .context = 3, .vocab_size = 11});
  constexpr std::int64_t block = 96 + 96 + 48 + 120 + 24 + 24;
  const Measured kept = measure(model, {}, 1, 3, true);
  EXPECT_EQ(kept.saved, 2 * (block + 96 + 60) + 96 + 12 + 4);
  EXPECT_EQ(kept.forward_peak, kept.saved);
  EXPECT_EQ(kept.backward_peak, kept.saved + 48);
  const Measured made_again = measure(model, {.recompute = Recompute::cheap}, 1, 3, true);
  EXPECT_EQ(made_again.saved, 2 * block + 96 + 12 + 4);
  EXPECT_EQ(made_again.forward_peak, 2 * block + 96 + 60);
  EXPECT_EQ(made_again.backward_peak, 2 * block + 96 + 60 + 4);
}

TEST(ActivationMemory, MlpFollowsTheFormula) {
  for (const std::int64_t layers : {0, 1, 3}) {
    for (const std::int64_t hidden : {1, 5, 40}) {
      for (const ActivationOptions& options : all_options()) {
        const MlpConfig config{.layers = layers, .width = 6, .intermediate_size = hidden, .vocab_size = 11};
        Mlp model(config);
        if (options.checkpointed) set_checkpointed(model, "mlp_block");
        expect_equal(measure(model, options, 3, 7, layers == 1), activation_bytes(config, 3, 7, options),
                     fmt::format("{} layers, hidden {}, {}", layers, hidden, to_string(options)));
      }
    }
  }
}

// An output that was kept goes when its consumer has used it, as one that was made again: before the next gradient comes.
TEST(ActivationMemory, KeptOutputsAreFreedByTheirLastUse) {
  Rig rig;
  Sequential chain;
  chain.add<LayerNorm>("norm", 5);
  chain.add<Linear>("up", 5, 7);
  chain.add<Gelu>("act");
  chain.add<Linear>("down", 7, 5);
  const PlainParameters storage(chain, rig.context);
  constexpr std::int64_t a = 4 * 5 * 4, h = 4 * 7 * 4, s = 2 * 4 * 4;
  Record record;
  static_cast<void>(chain.forward(rig.context, list_of(rig.normal({4, 5}, "x")), &record));
  EXPECT_EQ(rig.activation_bytes(), a + s + a + h + h) << "x, its statistics, the outputs";
  Tensors dys = list_of(rig.normal({4, 5}, "dy"));
  const std::int64_t before = rig.activation_bytes();
  rig.pool->reset_peak();
  const Tensors dxs = chain.backward(rig.context, std::move(record), std::move(dys));
  EXPECT_EQ(rig.pool->stats().peak_of(MemoryRole::activation), before) << "every gradient is where an output was";
  EXPECT_EQ(rig.activation_bytes(), a);
}

}  // namespace
}  // namespace mica::nn
