// SPDX-License-Identifier: Apache-2.0
#include "mica/data/token_file.hpp"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"

#include "data_files.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using namespace mica::test;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::vector<std::int32_t> read_all(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, ids);
  return ids;
}

std::string error_of_opening(const std::string& path) {
  const std::string text = error_of<ConfigError>([&] { (void)TokenFile::open(path); });
  EXPECT_THAT(text, HasSubstr(path));
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

TEST(TokenFile, ReadsEveryFormat) {
  const TemporaryFolder folder;
  const auto expected = counting_tokens<std::int32_t>(1000, 60000);
  write_text(folder / "raw.bin", bytes_of(counting_tokens<std::uint16_t>(1000, 60000)));
  write_llmc(folder / "gpt2.bin", 20240520, 1, 1000, counting_tokens<std::uint16_t>(1000, 60000));
  write_llmc(folder / "llama.bin", 20240801, 7, 1000, counting_tokens<std::uint32_t>(1000, 60000));
  write_hdf5_tokens(folder / "u16.h5", counting_tokens<std::uint32_t>(1000, 60000), {65536, "t", io::FileType::u16});
  write_hdf5_tokens(folder / "u32.h5", counting_tokens<std::uint32_t>(1000, 60000), {0, "", io::FileType::u32});
  const std::vector<std::tuple<std::string, TokenFormat, std::int64_t>> cases{{"raw.bin", TokenFormat::raw, 2},
                                                                              {"gpt2.bin", TokenFormat::llmc_u16, 2},
                                                                              {"llama.bin", TokenFormat::llmc_u32, 4},
                                                                              {"u16.h5", TokenFormat::hdf5, 2},
                                                                              {"u32.h5", TokenFormat::hdf5, 4}};
  for (const auto& [name, format, token_bytes] : cases) {
    const auto file = TokenFile::open(folder / name);
    EXPECT_EQ(file.format(), format);
    EXPECT_EQ(file.token_bytes(), token_bytes);
    EXPECT_EQ(file.num_tokens(), 1000);
    EXPECT_EQ(read_all(file), expected) << name;
    std::vector<std::int32_t> three(3);
    file.read(997, three);
    EXPECT_EQ(three, (std::vector<std::int32_t>(expected.end() - 3, expected.end())));
    file.read(1000, {});
    EXPECT_EQ(file.token(5), 60005);
  }
  EXPECT_EQ(TokenFile::open(folder / "u16.h5").vocab_size(), 65536);
  EXPECT_EQ(TokenFile::open(folder / "u16.h5").tokenizer(), "t");
  EXPECT_EQ(TokenFile::open(folder / "u16.h5").tokenizer_hash(), "hash of t");
  EXPECT_EQ(TokenFile::open(folder / "raw.bin").vocab_size(), std::nullopt);
  EXPECT_EQ(TokenFile::open(folder / "u32.h5").vocab_size(), std::nullopt);
}

TEST(TokenFile, FindsTheFirstIdPastTheVocabulary) {
  const TemporaryFolder folder;
  auto ids = std::vector<std::uint32_t>(50000, 9);
  ids[40001] = 3'000'000'000U;  // negative as an int32
  ids[49999] = 10;
  write_hdf5_tokens(folder / "x.h5", ids, {0, "", io::FileType::u32});
  const auto file = TokenFile::open(folder / "x.h5");
  EXPECT_EQ(file.find_past_vocab(10, 0, 50000), 40001);
  EXPECT_EQ(file.find_past_vocab(10, 0, 40001), 40001);  // the end: none
  EXPECT_EQ(file.find_past_vocab(10, 40002, 50000), 49999);
  EXPECT_EQ(file.find_past_vocab(9, 7, 50000), 7);
  EXPECT_EQ(file.find_past_vocab(11, 40002, 50000), 50000);
  EXPECT_EQ(file.token(40001), 3'000'000'000);
}

TEST(TokenFile, MissingUnreadableAndEmptyFiles) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of_opening(folder / "absent.h5"), AllOf(HasSubstr("No such file"), HasSubstr("data.train")));
  EXPECT_THAT(error_of_opening(folder.path()), HasSubstr("folder"));
  write_text(folder / "empty.h5", "");
  write_text(folder / "empty.bin", "");
  EXPECT_THAT(error_of_opening(folder / "empty.h5"), HasSubstr("0 bytes"));
  EXPECT_THAT(error_of_opening(folder / "empty.bin"), HasSubstr("mica-tokenize"));
}

TEST(TokenFile, WhatIsNoTokenFile) {
  const TemporaryFolder folder;
  write_text(folder / "book.txt", "To be, or not to be");
  EXPECT_THAT(error_of_opening(folder / "book.txt"), AllOf(HasSubstr("'To be, o'"), HasSubstr("mica-tokenize")));
  write_text(folder / "one", "x");
  EXPECT_THAT(error_of_opening(folder / "one"), HasSubstr("not a token file"));
  write_text(folder / "text.h5", "not HDF5 but named so");
  EXPECT_THAT(error_of_opening(folder / "text.h5"), HasSubstr("not a token file"));
  write_llmc(folder / "eval.bin", 20240522, 1, 5, counting_tokens<std::uint16_t>(100));
  EXPECT_THAT(error_of_opening(folder / "eval.bin"), HasSubstr("evaluation"));
  auto other = io::Hdf5File::create(folder / "other.h5");
  (void)other.create_dataset("/weights", DType::f32, {3});
  other.close();
  EXPECT_THAT(error_of_opening(folder / "other.h5"), AllOf(HasSubstr("/tokens"), HasSubstr("weights")));
}

TEST(TokenFile, RawFilesNeedWholeTokens) {
  const TemporaryFolder folder;
  write_text(folder / "odd.bin", "abc");
  EXPECT_THAT(error_of_opening(folder / "odd.bin"), AllOf(HasSubstr("truncated"), HasSubstr("3")));
  write_text(folder / "two.bin", "ab");
  EXPECT_EQ(TokenFile::open(folder / "two.bin").num_tokens(), 1);
}

// Megatron's and nanoGPT's own scripts write int32 or uint32 into such files, too, whose halves would be trained on.
TEST(TokenFile, RawFilesOf32BitIdsAreRefused) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::vector<std::uint32_t>& ids) {
    write_text(folder / "u32.bin", bytes_of(ids));
    const std::string text = error_of_opening(folder / "u32.bin");
    EXPECT_THAT(text, HasSubstr("looks like 32-bit ids"));
    return text;
  };
  (void)refuse(counting_tokens<std::uint32_t>(5'000, 0, 50257));
  (void)refuse(counting_tokens<std::uint32_t>(100, 1000));
  (void)refuse(counting_tokens<std::uint32_t>(300'000, 0, 256));  // bytes
  auto wide = counting_tokens<std::uint32_t>(500'000, 0, 65'536);
  std::fill(wide.begin() + 20'000, wide.begin() + 400'000, 0);  // padding
  const std::string text = refuse(wide);
  const std::size_t begin = text.find("python3");
  const std::string command = text.substr(begin, text.find("\" (", begin) + 1 - begin);
  ASSERT_EQ(std::system(fmt::format("cd {} && {}", folder.path(), "/usr/bin/" + command).c_str()), 0) << command;  // the advice is right
  EXPECT_EQ(read_all(TokenFile::open(folder / "tokens.h5")), std::vector<std::int32_t>(wide.begin(), wide.end()));
}

TEST(TokenFile, RawFilesOf16BitIdsAreNotTakenForOthers) {
  const TemporaryFolder folder;
  const auto open = [&](const std::vector<std::uint16_t>& ids) {
    write_text(folder / "u16.bin", bytes_of(ids));
    EXPECT_EQ(TokenFile::open(folder / "u16.bin").num_tokens(), std::ssize(ids));
  };
  for (const std::int64_t vocab_size : {1, 2, 15, 17, 65, 256, 50257, 65536}) {
    for (const std::int64_t length : {1, 2, 3, 100, 5'000, 300'001}) open(counting_tokens<std::uint16_t>(length, 0, vocab_size));
  }
  std::string bytes;  // a text as bytes, in which half of all letters are in every second place
  while (bytes.size() < 100'000) bytes += "a\nb\nThe quick brown fox\n\n";
  open(std::vector<std::uint16_t>(bytes.begin(), bytes.end()));
  std::vector<std::uint16_t> runs(1'000'000, 0);  // a text between runs of padding
  for (std::size_t i = 0; i < runs.size(); i += i % 5'000 < 500 ? 1 : 4'500) runs[i] = static_cast<std::uint16_t>(i * 40503U);
  open(runs);
  std::vector<std::uint16_t> pairs(10'000, 3);                             // an alternation, but between small ids
  for (const std::uint16_t large : std::vector<std::uint16_t>{15, 100}) {  // pitch and length of notes, say
    for (std::size_t i = 0; i < pairs.size(); i += 2) pairs[i] = large;
    open(pairs);
  }
}

TEST(TokenFile, LlmcHeadersMustAgreeWithTheFile) {
  const TemporaryFolder folder;
  const auto ids = counting_tokens<std::uint16_t>(10);
  write_llmc(folder / "v2.bin", 20240520, 2, 10, ids);
  EXPECT_THAT(error_of_opening(folder / "v2.bin"), AllOf(HasSubstr("version 2"), HasSubstr("expected version 1")));
  write_llmc(folder / "v1.bin", 20240801, 1, 10, counting_tokens<std::uint32_t>(10));
  EXPECT_THAT(error_of_opening(folder / "v1.bin"), HasSubstr("expected version 7"));
  write_llmc(folder / "short.bin", 20240520, 1, 11, ids);
  EXPECT_THAT(error_of_opening(folder / "short.bin"), AllOf(HasSubstr("truncated"), HasSubstr("1046"), HasSubstr("1044")));
  write_llmc(folder / "long.bin", 20240520, 1, 9, ids);
  EXPECT_THAT(error_of_opening(folder / "long.bin"), HasSubstr("too long"));
  write_llmc(folder / "none.bin", 20240520, 1, 0, std::vector<std::uint16_t>{});
  EXPECT_THAT(error_of_opening(folder / "none.bin"), HasSubstr("promises 0 tokens"));
  write_llmc(folder / "negative.bin", 20240520, 1, -1, ids);
  EXPECT_THAT(error_of_opening(folder / "negative.bin"), HasSubstr("promises -1 tokens"));
  write_llmc(folder / "head.bin", 20240801, 7, 1, std::vector<std::uint32_t>{1});
  std::filesystem::resize_file(folder / "head.bin", 100);
  EXPECT_THAT(error_of_opening(folder / "head.bin"), AllOf(HasSubstr("truncated"), HasSubstr("1024 bytes of header")));
}

TEST(TokenFile, Hdf5FilesOfTheWrongShape) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name, io::FileType type, const std::vector<std::int64_t>& dims) {
    auto file = io::Hdf5File::create(folder / name);
    (void)file.create_dataset(kTokensDataset, type, dims);
    file.close();
    return error_of_opening(folder / name);
  };
  EXPECT_THAT(make("float.h5", io::FileType::f32, {10}), HasSubstr("fp32"));
  EXPECT_THAT(make("signed.h5", io::FileType::i64, {10}), HasSubstr("int64"));
  EXPECT_THAT(make("square.h5", io::FileType::u16, {3, 3}), HasSubstr("2 dimensions"));
  EXPECT_THAT(make("none.h5", io::FileType::u16, {0}), HasSubstr("empty"));
  write_hdf5_tokens(folder / "vocab.h5", {1, 2, 3}, {-5, "t"});
  EXPECT_THAT(error_of_opening(folder / "vocab.h5"), HasSubstr("vocab_size is -5"));
}

TEST(TokenFile, Hdf5FilesThatAreTruncatedOrDamaged) {
  const TemporaryFolder folder;
  const std::string whole = folder / "whole.h5";
  write_hdf5_tokens(whole, counting_tokens<std::uint32_t>(100000));
  const auto bytes = std::filesystem::file_size(whole);
  int num_refused = 0;
  for (const double part : {0.0001, 0.01, 0.5, 0.9, 0.9999}) {
    std::filesystem::copy_file(whole, folder / "cut.h5", std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(folder / "cut.h5", static_cast<std::uintmax_t>(static_cast<double>(bytes) * part));
    (void)error_of_opening(folder / "cut.h5");
    ++num_refused;
  }
  EXPECT_EQ(num_refused, 5);
}

TEST(TokenFile, AFileThatShrinksWhileInUseIsAnErrorAndNotASignal) {
  const TemporaryFolder folder;
  write_text(folder / "x.bin", bytes_of(counting_tokens<std::uint16_t>(100000)));
  const auto file = TokenFile::open(folder / "x.bin");
  std::filesystem::resize_file(folder / "x.bin", 10);
  EXPECT_THAT(error_of<IoError>([&] { (void)file.token(99999); }), HasSubstr("shrank"));
}

// Between two looks at its length, too.
TEST(TokenFile, PagesThatAreGoneAreAnErrorAndNotASignal) {
  for (const bool is_u32 : {false, true}) {
    const TemporaryFolder folder;
    const std::string path = folder / (is_u32 ? "x.h5" : "x.bin");
    if (is_u32) {
      write_hdf5_tokens(path, counting_tokens<std::uint32_t>(100'000), {0, "", io::FileType::u32});
    } else {
      write_text(path, bytes_of(counting_tokens<std::uint16_t>(100'000)));
    }
    const auto file = TokenFile::open(path);
    EXPECT_EQ(file.token(1), 1);
    std::filesystem::resize_file(path, 10'000);
    EXPECT_THAT(error_of<IoError>([&] { (void)file.token(99'999); }), HasSubstr("shrank"));
    std::filesystem::rename(path, path + ".old");  // now its length is not known
    EXPECT_THAT(error_of<IoError>([&] { (void)file.token(99'999); }),
                AllOf(HasSubstr(path + ": bytes "), HasSubstr("cannot be read: the disk or the file server failed")));
    EXPECT_EQ(file.token(2), 2);
  }
}

// Each look is a system call, and on a network file system may be a request to its server.
TEST(TokenFile, LooksWhetherItHasShrunkOnceASecond) {
  const TemporaryFolder folder;
  write_text(folder / "x.bin", bytes_of(counting_tokens<std::uint16_t>(100'000)));
  const auto file = TokenFile::open(folder / "x.bin");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(file.token(1), 1);
  std::filesystem::resize_file(folder / "x.bin", 100'000);
  std::string error;
  while (error.empty() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
    try {
      EXPECT_EQ(file.token(1), 1);  // is still there
    } catch (const IoError& each) {
      error = each.what();
    }
  }
  EXPECT_THAT(error, HasSubstr("shrank from 200000 to 100000 bytes"));
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(passed.count(), 1.0);
  EXPECT_LT(passed.count(), 5.0);
}

// HDF5 believes the end that a file's header names, and the tokens are mapped without HDF5.
TEST(TokenFile, AnHdf5FileThatLiesAboutItsEndIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "cut.h5";
  write_text(folder / "make.py",
             "import h5py, numpy as np, sys\n"
             "f = h5py.File(sys.argv[1], 'w', libver=('earliest', 'v108')); f['tokens'] = np.arange(100000, dtype=np.uint32)\n");
  ASSERT_EQ(std::system(fmt::format("/usr/bin/python3 {} {}", folder / "make.py", path).c_str()), 0);
  const std::uint64_t end = std::filesystem::file_size(path) / 2;
  std::filesystem::resize_file(path, end);
  constexpr std::streamoff kEndOfFileAddress = 40;  // in version 0 of the format's superblock
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(kEndOfFileAddress).write(reinterpret_cast<const char*>(&end), sizeof end);
  file.close();
  EXPECT_THAT(error_of_opening(path), HasSubstr("truncated: /tokens takes 400000 bytes"));
}

// A flipped bit makes 2^62 tokens of 4 bytes each, which are 0 bytes modulo 2^64.
TEST(TokenFile, AnHdf5FileWithADamagedExtentIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "extent.h5";
  write_text(folder / "make.py",
             "import h5py, numpy as np, sys\n"
             "f = h5py.File(sys.argv[1], 'w', libver=('earliest', 'v108')); f['tokens'] = np.zeros(12345, dtype=np.uint32)\n");
  ASSERT_EQ(std::system(fmt::format("/usr/bin/python3 {} {}", folder / "make.py", path).c_str()), 0);
  const std::string whole = io::read_file(path);
  const std::uint64_t extent = 12345;
  const std::size_t at = whole.find(std::string(reinterpret_cast<const char*>(&extent), sizeof extent));
  ASSERT_NE(at, std::string::npos);
  for (const int bit : {16, 40, 61, 62}) {
    std::string damaged = whole;
    damaged[at + static_cast<std::size_t>(bit) / 8] ^= static_cast<char>(1 << bit % 8);
    write_text(path, damaged);
    EXPECT_THAT(error_of_opening(path), AnyOf(HasSubstr("truncated: /tokens takes"), HasSubstr("more than any file can hold"))) << bit;
  }
}

/// Token files that others made with h5py: compressed ones are refused with the command that helps, contiguous ones
/// work.
TEST(TokenFile, FilesMadeWithPython) {
  const TemporaryFolder folder;
  write_text(folder / "make.py",
             "import h5py, numpy as np, sys\n"
             "d = sys.argv[1]\n"
             "t = np.arange(5000, dtype=np.uint16)\n"
             "f = h5py.File(d + '/plain.h5', 'w'); f['tokens'] = t; f['tokens'].attrs['vocab_size'] = np.int32(5000)\n"
             "f = h5py.File(d + '/gzip.h5', 'w'); f.create_dataset('tokens', data=t, compression='gzip')\n"
             "f = h5py.File(d + '/late.h5', 'w'); f.create_dataset('tokens', shape=(5,), dtype=np.uint16)\n");
  ASSERT_EQ(std::system(fmt::format("/usr/bin/python3 {} {}", folder / "make.py", folder.path()).c_str()), 0);
  const auto plain = TokenFile::open(folder / "plain.h5");
  EXPECT_EQ(read_all(plain), counting_tokens<std::int32_t>(5000));
  EXPECT_EQ(plain.vocab_size(), 5000);
  EXPECT_THAT(error_of_opening(folder / "gzip.h5"), HasSubstr("h5repack"));
  EXPECT_THAT(error_of_opening(folder / "late.h5"), HasSubstr("truncated"));  // promised, but nothing was ever written
  const std::string repack =
      fmt::format("h5repack -l CONTI -f NONE {} {} && rm {}", folder / "gzip.h5", folder / "fixed.h5", folder / "gzip.h5");
  ASSERT_EQ(std::system(repack.c_str()), 0);  // the advice of the error is right
  EXPECT_EQ(read_all(TokenFile::open(folder / "fixed.h5")), counting_tokens<std::int32_t>(5000));
}

}  // namespace
}  // namespace mica::data
