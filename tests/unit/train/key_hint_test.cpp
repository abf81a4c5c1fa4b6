// SPDX-License-Identifier: Apache-2.0
// The hint for a key that does not exist: the field's other words, other sections, typing errors.
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/train/config.hpp"

#include "../../../src/train/config_keys.hpp"
#include "../../../src/train/config_other_names.hpp"

namespace mica::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string hint_in_refusal(const std::string& text, const std::vector<std::string>& flags = {}) {
  try {
    static_cast<void>(parse_config({"x.cfg", text}, flags));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

std::set<std::string> names() {
  std::set<std::string> all;
  for (const ConfigKey& key : config_keys()) all.insert(key.name);
  return all;
}

TEST(KeyHint, EveryKeyOfTheTableExists) {
  const std::set<std::string> keys = names();
  std::set<std::string_view> words;
  for (const OtherNames& row : other_names()) {
    SCOPED_TRACE(fmt::format("{} {}", row.key, row.words));
    EXPECT_TRUE(row.key.empty() ? !row.note.empty() : keys.contains(std::string(row.key)));
    const std::string note(row.note);
    const std::regex key_pattern(R"(\b(run|mesh|model|data|fsdp|optim|train|checkpoint|log)\.[a-z_0-9]+)");
    for (std::sregex_iterator found(note.begin(), note.end(), key_pattern), end; found != end; ++found) {
      EXPECT_TRUE(keys.contains(found->str())) << found->str();
    }
    for (const std::string_view word : words_of(row)) {
      EXPECT_TRUE(words.insert(word).second) << word << " stands twice in the table";
      EXPECT_EQ(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789"), std::string_view::npos) << word;
      // A word that is a key's own name would hide it.
      for (const std::string& key : keys) {
        EXPECT_TRUE(!key.ends_with("." + std::string(word)) || key == "checkpoint.optimizer") << word << " " << key;
      }
    }
  }
  EXPECT_GE(words.size(), 200u);
}

TEST(KeyHint, TheFieldsWordsAreKnownInFilesAndAsFlags) {
  const std::vector<std::pair<std::string, std::string>> expected{
      {"learning_rate", "optim.lr"},
      {"lr_scheduler_type", "optim.schedule"},
      {"batch_size", "train.micro_batch"},
      {"per_device_train_batch_size", "train.micro_batch"},
      {"gradient_accumulation_steps", "train.global_batch"},
      {"n_layer", "model.layers"},
      {"n_embd", "model.width"},
      {"n_head", "model.heads"},
      {"hidden_size", "model.width"},
      {"num_hidden_layers", "model.layers"},
      {"block_size", "train.seq_len"},
      {"max_steps", "train.steps"},
      {"warmup_steps", "optim.warmup_steps"},
      {"weight_decay", "optim.weight_decay"},
      {"optim_bits", "optim.state_dtype"},
      {"adam_beta1", "optim.beta1"},
      {"max_grad_norm", "optim.grad_clip"},
      {"fp16", "fsdp.param_dtype"},
      {"bf16", "fsdp.param_dtype"},
      {"seed", "run.seed"},
      {"sharding_strategy", "fsdp.strategy"},
      {"cpu_offload", "fsdp.cpu_offload"},
      {"intermediate_size", "model.intermediate_size"},
      {"save_total_limit", "checkpoint.keep"},
      {"time", "train.max_hours"},
      {"cpus_per_task", "mesh.threads"},
  };
  for (const auto& [word, key] : expected) {
    SCOPED_TRACE(word);
    const std::string hint = "unknown key 'train." + word + "': did you mean " + key + "?";
    if (key != "train." + word) {
      EXPECT_THAT(hint_in_refusal("[train]\n" + word + " = 1\n"), StartsWith("x.cfg:2: " + hint));
      EXPECT_THAT(hint_in_refusal("", {"--train." + word + "=1"}), StartsWith("flag '--train." + word + "=1': " + hint));
    }
    const std::string alone = "unknown key '" + word + "': did you mean " + key + "?";
    EXPECT_THAT(hint_in_refusal("", {"--" + word + "=1"}), StartsWith("flag '--" + word + "=1': " + alone));
    EXPECT_THAT(hint_in_refusal(word + " = 1\n"), StartsWith("x.cfg:1: " + alone));
  }
  EXPECT_THAT(hint_in_refusal("", {"--Learning-Rate=1"}), HasSubstr("unknown key 'Learning-Rate': did you mean optim.lr?"));
  EXPECT_THAT(hint_in_refusal("", {"--fp16"}),
              AllOf(StartsWith("flag '--fp16': unknown key 'fp16': did you mean fsdp.param_dtype?"), Not(HasSubstr("no value"))));
}

TEST(KeyHint, WhatNoKeySaysIsSaid) {
  for (const char* word : {"nodes", "ntasks", "nproc_per_node", "mesh.world_size"}) {
    EXPECT_THAT(hint_in_refusal("", {std::string("--") + word + "=2"}),
                AllOf(HasSubstr("the launcher decides how many ranks"), Not(HasSubstr("did you mean"))));
  }
  EXPECT_THAT(hint_in_refusal("", {"--batch_size=2"}),
              HasSubstr("did you mean train.micro_batch? It counts the sequences that a rank computes"));
}

TEST(KeyHint, OtherSectionsAndTypingErrors) {
  EXPECT_THAT(hint_in_refusal("[train]\nstep = 3\n"), StartsWith("x.cfg:2: unknown key 'train.step': did you mean train.steps?"));
  EXPECT_THAT(hint_in_refusal("[train]\nlr = 3\n"), HasSubstr("did you mean optim.lr?"));
  EXPECT_THAT(hint_in_refusal("[model]\nsteps = 3\n"), HasSubstr("did you mean train.steps?"));
  EXPECT_THAT(hint_in_refusal("[training]\nsteps = 3\n"), HasSubstr("did you mean train.steps?"));
  EXPECT_THAT(hint_in_refusal("[checkpoints]\ninterval = 3\n"), HasSubstr("did you mean checkpoint.interval?"));
  EXPECT_THAT(hint_in_refusal("", {"--micro_batchs=3"}), HasSubstr("did you mean train.micro_batch?"));
  EXPECT_THAT(hint_in_refusal("", {"--"}), HasSubstr("unknown key ''"));
}

TEST(KeyHint, IsRightOrAbsent) {
  const std::vector<std::pair<std::string, std::string>> expected{
      {"train_steps", "train.steps"},         {"train-steps", "train.steps"},           {"train_step", "train.steps"},
      {"log.interval", "train.log_interval"}, {"eval.interval", "train.eval_interval"}, {"train.log_steps", "train.log_interval"},
      {"log.steps", "train.log_interval"},    {"eval.steps", "train.eval_interval"},    {"checkpoint.steps", "checkpoint.interval"},
      {"optim.warmup", "optim.warmup_steps"}, {"train.batch", "train.micro_batch"},     {"data.path", "data.train"},
      {"train.amp", "fsdp.param_dtype"},      {"model.widht", "model.width"},
  };
  for (const auto& [name, key] : expected) {
    EXPECT_THAT(hint_in_refusal("", {"--" + name + "=1"}), HasSubstr("unknown key '" + name + "': did you mean " + key + "?"));
  }
  for (const char* name : {"train.compile", "interval", "optim.interval", "type", "model.depth", "data.test", "x"}) {
    EXPECT_THAT(hint_in_refusal("", {std::string("--") + name + "=1"}),
                HasSubstr(std::string("unknown key '") + name + "' (mica-train --help lists all keys)"));
  }
  EXPECT_THAT(hint_in_refusal("", {"--data.tokenizer=bytes"}), AllOf(HasSubstr("mica-tokenize --vocab="), Not(HasSubstr("did you mean"))));
}

}  // namespace
}  // namespace mica::train
