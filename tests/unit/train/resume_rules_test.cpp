// SPDX-License-Identifier: Apache-2.0
#include "mica/train/resume_rules.hpp"

#include <gtest/gtest.h>

namespace mica::train {
namespace {

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
