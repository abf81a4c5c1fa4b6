// SPDX-License-Identifier: Apache-2.0
#include "mica/data/tokenize.hpp"

#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/data/token_dataset.hpp"
#include "mica/data/token_file.hpp"
#include "mica/io/atomic_file.hpp"

#include "data_files.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using namespace mica::test;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  const auto file = TokenFile::open(path);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, ids);
  return make_tokenizer("bytes")->decode(ids);
}

std::vector<std::string> names_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Bytes as ids past 65,536, line by line, with a mark after each document; remembers how the text was cut.
class WordTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string name() const override { return "words"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return 100000; }
  [[nodiscard]] std::string hash() const override { return "ab"; }
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return 99999; }
  [[nodiscard]] std::size_t encode_part(std::string_view text, DocumentPart part, std::vector<std::int32_t>& ids) const override {
    if (!part.is_last) text = text.substr(0, text.rfind('\n') + 1);
    pieces.emplace_back(text);
    parts.push_back(part);
    for (const char c : text) ids.push_back(70000 + static_cast<unsigned char>(c));
    return text.size();
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override { return ""; }
  mutable std::vector<std::string> pieces;
  mutable std::vector<DocumentPart> parts;
};

TEST(ByteTokenizer, IsTheIdentity) {
  const auto tokenizer = make_tokenizer("bytes");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  std::vector<std::int32_t> ids{42};
  tokenizer->encode(all, ids);
  ASSERT_EQ(ids.size(), 257U);
  EXPECT_EQ(ids[1], 0);
  EXPECT_EQ(ids[256], 255);
  EXPECT_EQ(tokenizer->decode(std::span(ids).subspan(1)), all);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->hash(), "a349ca45eabd9591");  // stored in files: must not change
  EXPECT_THROW((void)tokenizer->decode(std::vector<std::int32_t>{256}), ConfigError);
  EXPECT_THROW((void)tokenizer->decode(std::vector<std::int32_t>{-1}), ConfigError);
  EXPECT_THAT(error_of<ConfigError>([] { (void)make_tokenizer("gpt2"); }),
              AllOf(HasSubstr("--vocab=gpt2"), HasSubstr("bytes"), HasSubstr("tokenizer.json"), HasSubstr(".model")));
}

TEST(Tokenize, HoldsOutTheEndOfEachFileAtAParagraph) {
  const TemporaryFolder folder;
  std::string first;
  for (int i = 0; i < 200; ++i) first += fmt::format("Paragraph {} of the first file,\non two lines.\n\n", i);
  std::string second;
  for (int i = 0; i < 300; ++i) second += fmt::format("line {}\n", i);
  write_text(folder / "a.txt", first);
  write_text(folder / "b.txt", second);
  const auto result = tokenize_files(*make_tokenizer("bytes"), {{folder / "a.txt", folder / "b.txt"}, folder / "corpus.h5", 0.1, {}});
  EXPECT_EQ(result.train_path, folder / "corpus.train.h5");
  EXPECT_EQ(result.val_path, folder / "corpus.val.h5");
  const std::string train = text_of(result.train_path);
  const std::string val = text_of(result.val_path);
  EXPECT_EQ(static_cast<std::size_t>(result.train_tokens), train.size());
  EXPECT_EQ(static_cast<std::size_t>(result.val_tokens), val.size());
  EXPECT_EQ(train.size() + val.size(), first.size() + second.size());
  EXPECT_NEAR(static_cast<double>(val.size()) / static_cast<double>(first.size() + second.size()), 0.1, 0.01);
  const std::size_t first_val = val.find("line ");  // where the second file's part begins
  EXPECT_TRUE(val.starts_with("Paragraph 1"));
  EXPECT_TRUE(first.ends_with(val.substr(0, first_val)));
  EXPECT_TRUE(second.ends_with(val.substr(first_val)));
  EXPECT_EQ(train.find("line 0\n") == std::string::npos, false);
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"a.txt", "b.txt", "corpus.train.h5", "corpus.val.h5"}));
}

TEST(Tokenize, PrefersTheEndOfAParagraphToThatOfALine) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "one line\nof four\nin a\nparagraph\n\n";
  write_text(folder / "t", text);
  for (const double fraction : {0.1, 0.21, 0.33, 0.437, 0.5, 0.66, 0.9}) {
    const auto result = tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x", fraction, {}, true});
    EXPECT_TRUE(text_of(result.train_path).ends_with("paragraph\n\n")) << fraction;
    EXPECT_NEAR(static_cast<double>(result.val_tokens), fraction * static_cast<double>(text.size()), 20) << fraction;
  }
}

TEST(Tokenize, KeepsEveryByteWhateverTheText) {
  const TemporaryFolder folder;
  std::string one_line(1'200'000, 'x');  // several pieces, no line end
  for (std::size_t i = 0; i < one_line.size(); ++i) one_line[i] = static_cast<char>(i * 2654435761U >> 24);
  std::string accents;
  while (accents.size() < 1'100'000) accents += "\xC3\xA9\xF0\x9F\x8E\x89z";
  for (const std::string& text : {std::string("ab"), std::string("\n\n\n\n"), std::string("no line end at all"), one_line, accents}) {
    for (const double fraction : {0.0, 0.001, 0.1, 0.9}) {
      write_text(folder / "t", text);
      const auto total = static_cast<double>(text.size());
      const bool splits = fraction == 0.0 || (std::llround(total * fraction) > 0 && std::llround(total * fraction) < std::llround(total));
      const TokenizeOptions options{{folder / "t"}, folder / "out", fraction, {}, true};
      if (!splits) {
        EXPECT_THROW((void)tokenize_files(*make_tokenizer("bytes"), options), ConfigError) << text.size() << " " << fraction;
        continue;
      }
      std::filesystem::remove(val_path_of(options.out));  // of the text before: not replaced by fraction 0
      const auto result = tokenize_files(*make_tokenizer("bytes"), options);
      const std::string train = text_of(result.train_path);
      const std::string val = fraction > 0 ? text_of(result.val_path) : "";
      EXPECT_TRUE(train + val == text) << text.size() << " " << fraction;
      if (text == accents) {
        EXPECT_NE(static_cast<unsigned char>(val.empty() ? 'z' : val[0]) & 0xc0U, 0x80U);  // not inside a character
      }
    }
  }
}

TEST(Tokenize, CutsPiecesAtLineEndsAndUsesWideIds) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 2'500'000) text += fmt::format("line number {}\n", text.size());
  write_text(folder / "t", text + "end");
  write_text(folder / "u", "x");
  const WordTokenizer words;
  std::vector<std::int64_t> reports;
  const auto result =
      tokenize_files(words, {{folder / "t", folder / "u"}, folder / "w.h5", 0.0, [&](std::int64_t done, std::int64_t total) {
                               reports.push_back(done);
                               EXPECT_EQ(total, static_cast<std::int64_t>(text.size()) + 4);
                             }});
  EXPECT_EQ(result.train_tokens, static_cast<std::int64_t>(text.size()) + 3 + 1 + 1 + 1);
  std::string joined;
  for (const std::string& piece : words.pieces) joined += piece;
  EXPECT_TRUE(joined == text + "endx");
  ASSERT_GE(words.pieces.size(), 4U);
  for (std::size_t i = 0; i + 2 < words.pieces.size(); ++i) EXPECT_EQ(words.pieces[i].back(), '\n');
  EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
  EXPECT_EQ(reports.back(), static_cast<std::int64_t>(text.size()) + 4);
  const auto file = TokenFile::open(result.train_path);
  EXPECT_EQ(file.token_bytes(), 4);
  EXPECT_EQ(file.vocab_size(), 100000);
  EXPECT_EQ(file.token(0), 70000 + 'l');
  EXPECT_EQ(file.token(static_cast<std::int64_t>(text.size()) + 3), 99999);
  EXPECT_EQ(file.token(file.num_tokens() - 1), 99999);
  EXPECT_FALSE(std::filesystem::exists(folder / "w.val.h5"));
}

TEST(Tokenize, TheSameInputGivesTheSameBytes) {
  const TemporaryFolder folder;
  write_text(folder / "t", std::string(1000, 'a') + "\n" + std::string(1000, 'b'));
  for (const std::string out : {"x", "y"}) (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / out, 0.2, {}});
  EXPECT_TRUE(io::read_file(folder / "x.train.h5") == io::read_file(folder / "y.train.h5"));
  EXPECT_TRUE(io::read_file(folder / "x.val.h5") == io::read_file(folder / "y.val.h5"));
}

TEST(Tokenize, RefusesBadInputAndLeavesNothing) {
  const TemporaryFolder folder;
  write_text(folder / "t", "some text\n");
  write_text(folder / "empty", "");
  write_hdf5_tokens(folder / "tokens.h5", {1, 2, 3});
  const auto before = names_in(folder);
  const auto refuse = [&](const TokenizeOptions& options) {
    const std::string text = error_of<ConfigError>([&] { (void)tokenize_files(*make_tokenizer("bytes"), options); });
    EXPECT_EQ(names_in(folder), before);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  };
  const std::string out = folder / "x.h5";
  EXPECT_THAT(refuse({{}, out, 0.1, {}}), HasSubstr("no input"));
  EXPECT_THAT(refuse({{folder / "t", folder / "absent"}, out, 0.1, {}}), AllOf(HasSubstr("absent"), HasSubstr("No such file")));
  EXPECT_THAT(refuse({{folder.path()}, out, 0.1, {}}), HasSubstr("is a folder"));
  EXPECT_THAT(refuse({{"/dev/null"}, out, 0.1, {}}), HasSubstr("device"));
  EXPECT_THAT(refuse({{folder / "empty"}, out, 0.1, {}}), AllOf(HasSubstr("empty"), HasSubstr("0 bytes")));
  EXPECT_THAT(refuse({{folder / "empty", folder / "empty"}, out, 0.1, {}}), HasSubstr("all 2 inputs"));
  EXPECT_THAT(refuse({{folder / "tokens.h5"}, out, 0.1, {}}), HasSubstr("HDF5"));
  for (const double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refuse({{folder / "t"}, out, fraction, {}}), HasSubstr("--val-fraction="));
  }
  EXPECT_THAT(refuse({{folder / "t"}, folder / "no/x.h5", 0.1, {}}), HasSubstr("no such folder"));
  EXPECT_THAT(refuse({{folder / "t"}, folder.path() + "/", 0.1, {}}), HasSubstr("--out="));
  EXPECT_THAT(refuse({{folder / "t"}, "/proc/x.h5", 0.1, {}}), AllOf(HasSubstr("cannot write"), HasSubstr("/proc/x.train.h5")));
  EXPECT_THAT(refuse({{folder / "t"}, out, 0.01, {}}), HasSubstr("leaves 10 tokens for training and 0"));
}

TEST(Tokenize, SkipsEmptyFilesAmongOthers) {
  const TemporaryFolder folder;
  write_text(folder / "empty", "");
  write_text(folder / "t", "0123456789");
  const auto result =
      tokenize_files(*make_tokenizer("bytes"), {{folder / "empty", folder / "t", folder / "empty"}, folder / "x.h5", 0.3, {}});
  EXPECT_EQ(result.num_empty_files, 2);
  EXPECT_EQ(text_of(result.train_path), "0123456");
  EXPECT_EQ(text_of(result.val_path), "789");
}

TEST(Tokenize, AFailureLeavesTheOldOutputAlone) {
  const TemporaryFolder folder;
  write_text(folder / "t", "0123456789");
  (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0.3, {}});
  class Failing final : public Tokenizer {
   public:
    [[nodiscard]] std::string name() const override { return "failing"; }
    [[nodiscard]] std::int64_t vocab_size() const override { return 10; }
    [[nodiscard]] std::string hash() const override { return "f"; }
    [[nodiscard]] std::size_t encode_part(std::string_view text, DocumentPart, std::vector<std::int32_t>& ids) const override {
      ids.push_back(10);
      return text.size();
    }
    [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override { return ""; }
  };
  EXPECT_THAT(error_of<Error>([&] {
                (void)tokenize_files(Failing(), {{folder / "t"}, folder / "x.h5", 0.3, {}, true});
              }),
              AllOf(HasSubstr("'failing'"), HasSubstr("id 10")));
  EXPECT_EQ(text_of(folder / "x.train.h5"), "0123456");
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"t", "x.train.h5", "x.val.h5"}));
}

TEST(Tokenize, AStopAtAnyTimeLeavesNothing) {
  const TemporaryFolder folder;
  write_text(folder / "t", std::string(5 << 20, 'x'));  // several pieces of text, and two of tokens
  int num_stops = 0;
  for (bool was_stopped = true; was_stopped; num_stops += was_stopped ? 1 : 0) {
    TokenizeOptions options{{folder / "t"}, folder / "x.h5", 0.1, {}};
    options.is_stopped = [num_calls = 0, num_stops]() mutable { return num_calls++ == num_stops; };
    try {
      (void)tokenize_files(*make_tokenizer("bytes"), options);
      was_stopped = false;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("stopped before the end"));
      EXPECT_EQ(names_in(folder), std::vector<std::string>{"t"});
    }
  }
  EXPECT_GE(num_stops, 6 + 3 + 1);
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"t", "x.train.h5", "x.val.h5"}));
}

TEST(Tokenize, ReplacesTokenFilesOnlyWhenAsked) {
  const TemporaryFolder folder;
  write_text(folder / "t", "0123456789");
  write_text(folder / "u", "abcdefghij");
  const TokenizeOptions first{{folder / "t"}, folder / "x.h5", 0.3, {}};
  (void)tokenize_files(*make_tokenizer("bytes"), first);
  TokenizeOptions second{{folder / "u"}, folder / "x.h5", 0.3, {}};
  EXPECT_THAT(error_of<ConfigError>([&] { (void)tokenize_files(*make_tokenizer("bytes"), second); }),
              AllOf(HasSubstr("x.train.h5: exists already"), HasSubstr("--overwrite")));
  EXPECT_EQ(text_of(folder / "x.train.h5"), "0123456");
  second.overwrite = true;
  (void)tokenize_files(*make_tokenizer("bytes"), second);
  EXPECT_EQ(text_of(folder / "x.train.h5"), "abcdefg");
}

// An old validation file would be evaluated on, though its text is trained on.
TEST(Tokenize, AnOldValidationFileIsNotLeftBesideATrainingFileOfEverything) {
  const TemporaryFolder folder;
  write_text(folder / "t", "0123456789");
  (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0.3, {}});
  for (const bool overwrite : {false, true}) {
    EXPECT_THAT(error_of<ConfigError>([&] {
                  (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0, {}, overwrite});
                }),
                AllOf(HasSubstr("delete " + (folder / "x.val.h5")), ::testing::Not(HasSubstr("--overwrite"))));
    EXPECT_EQ(text_of(folder / "x.train.h5"), "0123456");
    EXPECT_EQ(text_of(folder / "x.val.h5"), "789");
  }
  std::filesystem::remove(folder / "x.val.h5");
  (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0, {}, true});
  EXPECT_EQ(text_of(folder / "x.train.h5"), "0123456789");
}

// The tokens' checksum is in the file: damage is found, and a dataset's fingerprint needs no reading.
TEST(Tokenize, TheFileHoldsItsChecksum) {
  const TemporaryFolder folder;
  write_text(folder / "t", "0123456789");
  const auto result = tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0.0, {}});
  const auto file = TokenFile::open(result.train_path);
  EXPECT_EQ(file.recorded_checksum(), 0x98e9ff86U) << fmt::format("{:08x}", file.compute_checksum());
  EXPECT_EQ(file.compute_checksum(), file.recorded_checksum());
  std::string bytes = io::read_file(result.train_path);
  const std::size_t five = bytes.find(std::string("5\0006\0", 4));
  ASSERT_NE(five, std::string::npos);
  bytes[five] = '4';
  write_text(result.train_path, bytes);
  EXPECT_THAT(error_of<ConfigError>([&] {
                (void)TokenDataset::open({{result.train_path}, 4, 256});
              }),
              AllOf(HasSubstr("x.train.h5"), HasSubstr("do not match the checksum")));
}

// Large files are not read whole at the start of a run. Copies that differ between ranks hold one checksum, so samples tell them apart.
TEST(Tokenize, SamplesTellADamagedCopyFromASoundOne) {
  const TemporaryFolder folder;
  write_text(folder / "t", std::string(100'000, 'x'));
  (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0.0, {}});
  std::string bytes = io::read_file(folder / "x.train.h5");
  const auto begin = static_cast<std::size_t>(bytes.find(std::string("x\0x\0", 4)));
  bytes.replace(begin + 100'000, 512, std::string(512, '\0'));  // a block that a disk has lost
  write_text(folder / "y.h5", bytes);
  const auto open = [&](const std::string& name) {
    return TokenDataset::open({.paths = {folder / name}, .seq_len = 4, .vocab_size = 256, .scan_at_open_tokens = 10});
  };
  EXPECT_EQ(open("x.train.h5").fingerprint(), open("y.h5").fingerprint());
  EXPECT_EQ(open("x.train.h5").copy_fingerprint(), open("x.train.h5").copy_fingerprint());
  EXPECT_NE(open("x.train.h5").copy_fingerprint(), open("y.h5").copy_fingerprint());
}

TEST(Tokenize, PythonReadsTheOutput) {
  const TemporaryFolder folder;
  write_text(folder / "t", "0123456789");
  (void)tokenize_files(*make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0.0, {}});
  write_text(folder / "check.py",
             "import h5py, sys\n"
             "f = h5py.File(sys.argv[1], 'r')\n"
             "assert bytes(f['tokens'][()].astype('u1')) == b'0123456789'\n"
             "assert str(f['tokens'].dtype) == 'uint16' and f['tokens'].chunks is None\n"
             "for o in (f, f['tokens']):\n"
             "    assert o.attrs['vocab_size'] == 256 and o.attrs['tokenizer'] == 'bytes' and "
             "len(o.attrs['tokenizer_hash']) == 16\n");
  EXPECT_EQ(std::system(fmt::format("/usr/bin/python3 {} {}", folder / "check.py", folder / "x.train.h5").c_str()), 0);
}

}  // namespace
}  // namespace mica::data
