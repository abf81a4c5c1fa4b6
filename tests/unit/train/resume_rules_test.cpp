#include "mica/train/resume_rules.hpp"

#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

// 215 tokens are 10 sequences of 20 or 21 of 10. After 105 sequences of 20, epoch 10 has used its first 5: tokens 0 to 99.
TEST(CheckResume, AnotherSequenceLengthGoesOnWithTheFirstUnseenToken) {
  const test::TemporaryFolder folder;
  const std::vector<std::uint16_t> tokens(215, 7);
  std::ofstream(folder / "t.bin", std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), 430);
  Config saved;
  saved.data.train = {folder / "t.bin"};
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
    const auto data = data::TokenDataset::open({.paths = saved.data.train, .seq_len = seq_len, .vocab_size = 256});
    return check_resume(now, manifest, data, "x").sequences;
  };
  EXPECT_EQ(sequences(20), 105);
  EXPECT_EQ(sequences(10), 10 * 21 + 10);
  EXPECT_EQ(sequences(30), 10 * 7 + 4) << "sequence 3 of 30 begins with token 90, which was seen";
}

}  // namespace
}  // namespace mica::train
