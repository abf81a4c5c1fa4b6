// SPDX-License-Identifier: Apache-2.0
// Two programs that write one token file, and a spool that changes under its writer.
#include "../../../src/data/token_writer.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/data/token_file.hpp"
#include "mica/data/tokenize.hpp"

#include "data_files.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using test::error_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TokenWriter, ASecondOneOfAPathIsRefusedUntilTheFirstHasEnded) {
  const TemporaryFolder folder;
  const auto tokenizer = make_tokenizer("bytes");
  const std::vector<std::int32_t> ids = test::counting_tokens<std::int32_t>(1000, 0, 256);
  const auto refuse = [&] {
    EXPECT_THAT(error_of<ConfigError>([&] { const TokenWriter second(folder / "x.h5", *tokenizer); }),
                AllOf(HasSubstr("x.h5.spool.tmp"), HasSubstr("another program is writing it")));
  };
  {
    TokenWriter first(folder / "x.h5", *tokenizer);
    refuse();
    first.append(ids);
    refuse();
    first.finish();
    refuse();
    first.publish();
  }
  const auto file = TokenFile::open(folder / "x.h5");
  EXPECT_EQ(file.num_tokens(), 1000);
  EXPECT_EQ(file.recorded_checksum(), file.compute_checksum());
  test::write_text(folder / "x.h5.spool.tmp", "what a killed program left");
  { const TokenWriter third(folder / "x.h5", *tokenizer); }
  EXPECT_FALSE(std::filesystem::exists(folder / "x.h5.spool.tmp"));
}

TEST(TokenWriter, ASecondProgramDoesNotTouchWhatTheFirstWrites) {
  const TemporaryFolder folder;
  test::write_text(folder / "t", "0123456789");
  test::write_text(folder / "u", "abcdefghij");
  const auto tokenizer = make_tokenizer("bytes");
  TokenizeOptions first{{folder / "t"}, folder / "x.h5", 0.3, {}};
  const TokenizeOptions second{{folder / "u"}, folder / "x.h5", 0.3, {}, true};
  first.progress = [&](std::int64_t, std::int64_t) {
    EXPECT_THAT(error_of<ConfigError>([&] { (void)tokenize_files(*tokenizer, second); }), HasSubstr("another program is writing it"));
  };
  const TokenizeResult result = tokenize_files(*tokenizer, first);
  EXPECT_EQ(TokenFile::open(result.train_path).token(0), '0');
  EXPECT_EQ(TokenFile::open(result.val_path).token(0), '7');
}

TEST(TokenWriter, ASpoolThatChangedIsAnError) {
  const TemporaryFolder folder;
  const auto tokenizer = make_tokenizer("bytes");
  TokenWriter writer(folder / "x.h5", *tokenizer);
  writer.append(std::vector<std::int32_t>(3 << 20, 1));  // more than the writer keeps in memory
  std::fstream(folder / "x.h5.spool.tmp", std::ios::in | std::ios::out | std::ios::binary).put(2);
  EXPECT_THAT(error_of<IoError>([&] { writer.finish(); }), HasSubstr("does not hold what was written"));
}

}  // namespace
}  // namespace mica::data
