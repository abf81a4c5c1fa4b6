// SPDX-License-Identifier: Apache-2.0
#include "mica/train/resume_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 215 tokens are 10 sequences of 20 or 21 of 10. After 105 sequences of 20, epoch 10 has used its first 5: tokens 0 to 99.
TEST(CheckResume, AnotherSequenceLengthGoesOnWithTheFirstUnseenToken) {
  Config saved;
  saved.train.seq_len = 20;
  checkpoint::Manifest manifest;
  manifest.step = 21;
  manifest.global_batch = 5;
  manifest.sequences = 105;
  manifest.config = to_ini(saved, IniKeys::all);
  Config now = with_batch_of(saved, manifest, "x");
  EXPECT_EQ(now.train.global_batch, 5);
  const auto sequences = [&](std::int64_t seq_len) {
    now.train.seq_len = seq_len;
    now.checkpoint.allow_data_change = true;
    return check_resume(now, manifest, {.fingerprint = "", .num_tokens = 215}, "x").sequences;
  };
  EXPECT_EQ(sequences(20), 105);
  EXPECT_EQ(sequences(10), 10 * 21 + 10);
  EXPECT_EQ(sequences(30), 10 * 7 + 4) << "sequence 3 of 30 begins with token 90, which was seen";
}

// Earlier versions took heads and a context for an MLP.
TEST(CheckResume, KeysWithoutAnEffectMayChange) {
  Config saved;
  saved.model.type = "mlp";
  saved.model.heads = 2;
  saved.model.context = 64;
  saved.model.rope_factor = 4;
  checkpoint::Manifest manifest;
  manifest.global_batch = 4;
  manifest.config = to_ini(saved, IniKeys::all);
  Config now;
  now.model.type = "mlp";
  const auto resume = [&] {
    return check_resume(with_batch_of(now, manifest, "x"), manifest, {.fingerprint = "", .num_tokens = 215}, "x").changes;
  };
  EXPECT_THAT(resume(), IsEmpty());
  now.model.layers = 3;
  EXPECT_THROW((void)resume(), ConfigError);
  now.model.layers = saved.model.layers;
  now.model.type = "gpt2";
  EXPECT_THROW((void)resume(), ConfigError);
}

TEST(CheckResume, WhatIsTrainedAndFromWhatIsTold) {
  Config saved;
  saved.model.type = "llama";
  saved.fsdp.freeze = {"transformer.h.0.*"};
  saved.model.init_from = "base";
  saved.optim.loss_scale = 1024;
  checkpoint::Manifest manifest;
  manifest.global_batch = 4;
  manifest.config = to_ini(saved, IniKeys::all);
  const auto changes = [&](const Config& now) {
    return check_resume(with_batch_of(now, manifest, "x"), manifest, {.fingerprint = "", .num_tokens = 215}, "x");
  };
  EXPECT_THAT(changes(saved).changes, IsEmpty());
  EXPECT_FALSE(changes(saved).is_loss_scale_new);
  Config now = saved;
  now.fsdp.freeze.clear();
  now.fsdp.strategy = "no_shard";
  EXPECT_THAT(changes(now).changes, ElementsAre("fsdp.freeze: transformer.h.0.* -> "));
  now = saved;
  now.fsdp.param_dtype = "bf16";
  EXPECT_THAT(changes(now).changes, ElementsAre("fsdp.param_dtype: fp32 -> bf16"));
  now = saved;
  now.model.init_from = "other";
  EXPECT_THAT(changes(now).changes, ElementsAre(HasSubstr("model.init_from: other is not read")));
  now.model.init_from.clear();
  EXPECT_THAT(changes(now).changes, IsEmpty());
  now = saved;
  now.model.rope_factor = 4;
  EXPECT_THAT(changes(now).changes, IsEmpty()) << "without effect";
  now.model.rope_scaling = "llama3";
  EXPECT_THROW((void)changes(now), ConfigError);
  now = saved;
  now.optim.loss_scale = 8;
  EXPECT_TRUE(changes(now).is_loss_scale_new);
}

TEST(CheckResume, OtherValidationSequencesAreToldWhereCheckpointsAreKeptForTheirLosses) {
  const Config saved;
  checkpoint::Manifest manifest;
  manifest.global_batch = 4;
  manifest.config = to_ini(saved, IniKeys::all);
  Config now = with_batch_of(saved, manifest, "x");
  const auto changes = [&] { return check_resume(now, manifest, {.fingerprint = "", .num_tokens = 215}, "x").changes; };
  now.checkpoint.keep_best = 1;
  EXPECT_THAT(changes(), IsEmpty());
  now.train.eval_batches = 0;
  EXPECT_THAT(changes(), ElementsAre(HasSubstr("train.eval_batches: 8 -> 0: checkpoint.keep_best compares losses of the same sequences")));
  now.checkpoint.keep_best = 0;
  EXPECT_THAT(changes(), IsEmpty());
}

// A checkpoint keeps the config of its time: keys that were renamed since are the same keys.
TEST(CheckResume, AConfigOfOldNamesIsTheSameConfig) {
  Config now;
  now.model.intermediate_size = 24;
  now.train.gradient_sync = "no_sync";
  now.train.global_batch = 4;
  checkpoint::Manifest manifest;
  manifest.global_batch = 4;
  manifest.config = "[model]\nhidden = 24\n[train]\naccumulate = no_sync\n";
  EXPECT_TRUE(check_resume(now, manifest, {.fingerprint = "", .num_tokens = 215}, "x").changes.empty());
  now.model.intermediate_size = 25;
  EXPECT_THROW((void)check_resume(now, manifest, {.fingerprint = "", .num_tokens = 215}, "x"), ConfigError);
}

}  // namespace
}  // namespace mica::train
