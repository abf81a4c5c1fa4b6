// SPDX-License-Identifier: Apache-2.0
// Values that do not go with each other are refused, and those beside them are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/train/config.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--model.type=mlp", "--data.train=a.h5"});
  try {
    check_config(parse_config({}, flags));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

struct Refusal {
  std::vector<std::string> flags;  ///< refused together, for what the last one says
  std::string says;
  std::string instead;  ///< in place of the last one: accepted
};

TEST(ConfigRefusals, WhatDoesNotGoTogether) {
  const std::vector<Refusal> refusals{
      {{"--run.dir=$SCRATCH/x"}, "run.dir = '$SCRATCH/x' is not expanded", "--run.dir=a$1"},
      {{"--run.dir=runs/${USER}"}, "is not expanded", "--run.dir=runs/$"},
      {{"--run.dir=~/runs/x"}, "is not expanded", "--run.dir=./~/runs/x"},
      {{"--log.trace=5-1005"}, "log.trace = 5-1005: expected at most 1000 steps", "--log.trace=5-1004"},
      {{"--optim.lr=0.5", "--optim.min_lr=0.51"}, "optim.min_lr = 0.51 is above optim.lr = 0.5", "--optim.min_lr=0.5"},
      {{"--train.steps=20", "--optim.warmup_steps=21"}, "optim.warmup_steps = 21 is more than train.steps = 20", "--optim.warmup_steps=20"},
      {{"--optim.type=sgd", "--optim.nesterov=true", "--optim.momentum=0"},
       "needs optim.momentum above 0, which is 0",
       "--optim.momentum=0.1"},
      {{"--train.grad_norm_spike=3"},
       "train.grad_norm_spike = 3 has no effect with train.on_bad_step = none: leave it 0",
       "--train.grad_norm_spike=0"},
      {{"--model.heads=2"}, "model.heads = 2 has no effect with model.type = mlp: leave it 4", "--model.heads=4"},
      {{"--model.tie_embeddings=false", "--model.type=mlp"},
       "model.tie_embeddings = false has no effect with model.type = mlp",
       "--model.type=gpt2"},
      {{"--model.context=256", "--model.type=mlp"}, "model.context = 256 has no effect with model.type = mlp", "--model.type=llama"},
      {{"--model.dropout=0.1", "--model.type=mlp"},
       "model.dropout = 0.1 has no effect with model.type = mlp: leave it 0",
       "--model.type=gpt2"},
      {{"--model.dropout=0.1", "--model.type=llama"}, "model.dropout = 0.1 has no effect with model.type = llama", "--model.type=gpt2"},
      {{"--fsdp.sharding=per_parameter", "--fsdp.strategy=no_shard"},
       "fsdp.sharding = per_parameter has no effect with fsdp.strategy = no_shard: leave it flat",
       "--fsdp.strategy=hybrid_shard"},
      {{"--optim.momentum=0.9"}, "optim.momentum = 0.9 has no effect with optim.type = adamw: leave it 0", "--optim.momentum=0"},
      {{"--optim.type=sgd", "--optim.beta2=0.5"}, "optim.beta2 = 0.5 has no effect with optim.type = sgd", "--optim.beta2=0.95"},
      {{"--optim.schedule=constant", "--optim.min_lr=1e-5"},
       "optim.min_lr = 1e-05 has no effect with optim.schedule = constant: leave it 0",
       "--optim.min_lr=0"},
      {{"--fsdp.param_dtype=bf16", "--optim.loss_scale=1024"},
       "optim.loss_scale = 1024 has no effect with dtypes other than fp16: leave it 65536",
       "--fsdp.reduce_dtype=fp16"},
      {{"--optim.loss_scale_interval=3"}, "optim.loss_scale_interval = 3 has no effect", "--fsdp.param_dtype=fp16"},
      {{"--model.type=llama", "--model.rope_factor=32"},
       "model.rope_factor = 32 has no effect with model.rope_scaling = none: leave it 8",
       "--model.rope_factor=8"},
      {{"--fsdp.ignore=*.bias", "--fsdp.full_precision_in_eval=true", "--fsdp.param_dtype=bf16"},
       "fsdp.ignore keeps parameters in fsdp.param_dtype = bf16 alone",
       "--fsdp.param_dtype=fp32"},
      {{"--optim.in_backward=true", "--optim.grad_clip=1"}, "optim.grad_clip is 1", "--optim.grad_clip=0"},
      {{"--optim.in_backward=true", "--optim.grad_clip=0", "--fsdp.param_dtype=fp16"}, "cannot skip a step", "--fsdp.param_dtype=bf16"},
      {{"--optim.in_backward=true", "--optim.grad_clip=0", "--fsdp.reduce_dtype=fp16"}, "cannot skip a step", "--fsdp.reduce_dtype=fp32"},
      {{"--train.deterministic=true", "--train.gradient_sync=no_sync"},
       "train.gradient_sync = reduce_each",
       "--train.gradient_sync=reduce_each"},
      {{"--train.deterministic=true", "--fsdp.param_dtype=bf16", "--fsdp.keep_low_precision_grads=true"},
       "would round each sum to bf16",
       "--fsdp.reduce_dtype=fp32"},
      {{"--train.deterministic=true", "--train.reproducible=false"}, "train.reproducible", "--train.reproducible=true"},
      {{"--train.deterministic=true", "--fsdp.gradient_compression=bf16"},
       "two ways to reduce gradients",
       "--fsdp.gradient_compression=none"},
      {{"--checkpoint.keep_every=10", "--checkpoint.interval=5", "--checkpoint.keep=0"},
       "checkpoint.keep_every = 10 keeps more checkpoints than the newest ones, but checkpoint.keep = 0 keeps all",
       "--checkpoint.keep=1"},
      {{"--checkpoint.interval=1000", "--checkpoint.keep_every=1500"},
       "made every checkpoint.interval = 1000 steps",
       "--checkpoint.keep_every=3000"},
      {{"--checkpoint.keep_every=1000", "--checkpoint.interval_minutes=30"},
       "made every checkpoint.interval = 0 steps",
       "--checkpoint.interval=500"},
      {{"--data.val=b.h5", "--train.eval_interval=5", "--checkpoint.interval=10", "--checkpoint.keep_best=1", "--checkpoint.keep=0"},
       "checkpoint.keep_best = 1 keeps more checkpoints than",
       "--checkpoint.keep=1"},
      {{"--train.eval_interval=5", "--checkpoint.interval=10", "--checkpoint.keep_best=1", "--data.val="},
       "compares validation losses, but data.val is empty",
       "--data.val=b.h5"},
      {{"--data.val=b.h5", "--train.eval_interval=5", "--checkpoint.keep_best=1", "--checkpoint.interval=12"},
       "set checkpoint.interval = 12 to a multiple of train.eval_interval = 5",
       "--checkpoint.interval=15"},
      {{"--data.val=b.h5", "--train.eval_interval=5", "--checkpoint.keep_best=1", "--checkpoint.interval=0"},
       "both above 0",
       "--checkpoint.interval=5"},
      {{"--data.val=b.h5", "--checkpoint.interval=5", "--checkpoint.keep_best=1", "--train.eval_interval=0"},
       "both above 0",
       "--train.eval_interval=1"},
      {{"--fsdp.min_numel=3000", "--fsdp.wrap=block"}, "fsdp.min_numel = 3000 has no effect with fsdp.wrap = block", "--fsdp.wrap=size"},
      {{"--fsdp.shard_dims=*:1", "--fsdp.sharding=flat"}, "fsdp.sharding = flat", "--fsdp.sharding=per_parameter"},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(refusal_of(refusal.flags), HasSubstr(refusal.says));
    std::vector<std::string> accepted = refusal.flags;
    accepted.back() = refusal.instead;
    EXPECT_EQ(refusal_of(accepted), "not refused") << refusal.instead;
  }
  EXPECT_THAT(refusal_of({"--data.train="}), HasSubstr("data.train is empty"));
}

TEST(ConfigRefusals, KeysOfALlamaElsewhere) {
  for (const std::string type : {"gpt2", "mlp"}) {
    for (const std::string key : {"kv_heads=1", "head_dim=4", "rms_eps=1e-06", "rope_theta=5", "rope_scaling=llama3", "rope_factor=2",
                                  "rope_low_freq_factor=2", "rope_high_freq_factor=3", "rope_original_context=4"}) {
      const std::size_t equals = key.find('=');
      EXPECT_THAT(
          refusal_of({"--model.type=" + type, "--model." + key}),
          HasSubstr("model." + key.substr(0, equals) + " = " + key.substr(equals + 1) + " has no effect with model.type = " + type));
    }
  }
}

// Of a checkpoint that is older than the refusal.
TEST(ConfigRefusals, KeysThatTheUserHasNotSetMayBeIdle) {
  Config config = parse_config({}, {"--model.type=llama", "--data.train=a.h5"});
  apply_defaults(config, {"checkpoint", "[model]\nrope_factor = 4\n"});
  EXPECT_EQ(config.model.rope_factor, 4);
  EXPECT_NO_THROW(check_config(config));
}

}  // namespace
}  // namespace mica::train
