// SPDX-License-Identifier: Apache-2.0
#include "mica/data/token_dataset.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/data/batch.hpp"

#include "data_files.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using namespace mica::test;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Files of the given lengths whose tokens count 0, 1, 2, ... across all of them.
std::vector<std::string> counting_files(const TemporaryFolder& folder, const std::vector<std::int64_t>& lengths) {
  std::vector<std::string> paths;
  std::int64_t next = 0;
  for (const std::int64_t n : lengths) {
    paths.push_back(folder / fmt::format("part-{:02}.bin", paths.size()));
    write_text(paths.back(), bytes_of(counting_tokens<std::uint16_t>(n, next)));
    next += n;
  }
  return paths;
}

TEST(TokenDataset, SequencesAreCutAsDocumentedAcrossFiles) {
  const TemporaryFolder folder;
  for (const std::vector<std::int64_t>& lengths : std::vector<std::vector<std::int64_t>>{
           {10}, {9}, {1, 9}, {9, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 6}, {3, 3, 4}, {5, 1, 100}, {1000}}) {
    const auto paths = counting_files(folder, lengths);
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    for (const std::int64_t seq_len : {1, 2, 3, 8, 500}) {
      if (total < seq_len + 1) continue;
      const auto dataset = TokenDataset::open({paths, seq_len, 65536});
      ASSERT_EQ(dataset.num_tokens(), total);
      ASSERT_EQ(dataset.num_sequences(), (total - 1) / seq_len);
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(seq_len));
      std::vector<std::int32_t> targets(inputs.size());
      for (std::int64_t i = 0; i < dataset.num_sequences(); ++i) {
        dataset.read_sequence(i, inputs, targets);
        ASSERT_EQ(inputs, counting_tokens<std::int32_t>(seq_len, i * seq_len));
        ASSERT_EQ(targets, counting_tokens<std::int32_t>(seq_len, i * seq_len + 1));
      }
    }
  }
}

/// In a process of its own (a death test's), with few file descriptors.
[[noreturn]] void open_with_few_descriptors(const std::vector<std::string>& paths, rlim_t most) {
  const rlimit limit{most, most};
  std::string problem = ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? "" : "cannot lower the limit";
  try {
    const auto dataset = TokenDataset::open({paths, 8, 65536});
    std::vector<std::int32_t> inputs(8);
    std::vector<std::int32_t> targets(8);
    dataset.read_sequence(dataset.num_sequences() - 1, inputs, targets);
  } catch (const std::exception& e) {
    problem = e.what();
  }
  std::cerr << problem;
  std::_Exit(problem.empty() ? 0 : 2);
}

TEST(TokenDatasetDeathTest, MoreFilesThanDescriptorsCanBeOpen) {
  const TemporaryFolder folder;
  std::vector<std::string> paths = counting_files(folder, std::vector<std::int64_t>(100, 10));
  write_hdf5_tokens(folder / "last.h5", counting_tokens<std::uint32_t>(10));
  paths.push_back(folder / "last.h5");
  EXPECT_EXIT(open_with_few_descriptors(paths, 64), ::testing::ExitedWithCode(0), "");
#ifndef __SANITIZE_ADDRESS__  // with it comes UBSan here, which needs descriptors to look at an object with virtual functions
  EXPECT_EXIT(open_with_few_descriptors(paths, 0), ::testing::ExitedWithCode(2),
              AllOf(HasSubstr("part-00.bin"), HasSubstr("may open 0"), HasSubstr("ulimit -n"), Not(HasSubstr("check the path"))));
#endif
}

TEST(TokenDataset, Globs) {
  const TemporaryFolder folder;
  const auto paths = counting_files(folder, {5, 5, 5});
  EXPECT_EQ(expand_paths({folder / "part-*.bin"}), paths);
  EXPECT_EQ(expand_paths({folder / "part-0[12].bin", paths[0]}), (std::vector<std::string>{paths[1], paths[2], paths[0]}));
  EXPECT_EQ(expand_paths({folder / "absent.h5"}).size(), 1U);  // opening it says what is wrong
  std::filesystem::copy_file(paths[0], folder / "odd[1].bin");
  EXPECT_EQ(expand_paths({folder / "odd[1].bin"}), (std::vector<std::string>{folder / "odd[1].bin"}));
  EXPECT_THAT(error_of<ConfigError>([&] { (void)expand_paths({folder / "x-*.bin"}); }), HasSubstr("x-*.bin"));
  EXPECT_THAT(error_of<ConfigError>([&] { (void)expand_paths({}); }), HasSubstr("data.train"));
}

TEST(TokenDataset, TooFewTokensSaysHowManyAreNeeded) {
  const TemporaryFolder folder;
  const auto paths = counting_files(folder, {2, 2});
  EXPECT_EQ(TokenDataset::open({paths, 3, 65536}).num_sequences(), 1);
  const std::string text = error_of<ConfigError>([&] { (void)TokenDataset::open({paths, 4, 65536}); });
  EXPECT_THAT(text, AllOf(HasSubstr("part-00.bin and 1 more"), HasSubstr("4 tokens"), HasSubstr("seq_len=4"), HasSubstr("needs 5")));
  EXPECT_THAT(error_of<ConfigError>([&] { (void)TokenDataset::open({paths, 0, 65536}); }), HasSubstr("seq_len=0"));
  EXPECT_THROW((void)TokenDataset::open({paths, -1, 65536}), ConfigError);
  EXPECT_THROW((void)TokenDataset::open({paths, 1, 0}), ConfigError);
  EXPECT_THROW((void)TokenDataset::open({paths, 1, std::numeric_limits<std::int64_t>::max()}), ConfigError);
  EXPECT_THAT(error_of<ConfigError>([&] {
                (void)TokenDataset::open({paths, (std::int64_t{1} << 31) - 1, 65536});
              }),
              HasSubstr("needs 2147483648"));
  EXPECT_THROW((void)TokenDataset::open({paths, std::numeric_limits<std::int64_t>::max(), 65536}), ConfigError);
}

TEST(TokenDataset, AnIdPastTheVocabularyIsNamedWithFileAndPosition) {
  const TemporaryFolder folder;
  auto second = counting_tokens<std::uint16_t>(20, 0, 7);
  second[13] = 300;
  write_text(folder / "a.bin", bytes_of(counting_tokens<std::uint16_t>(10, 0, 7)));
  write_text(folder / "b.bin", bytes_of(second));
  const std::vector<std::string> paths{folder / "a.bin", folder / "b.bin"};
  const auto complains = AllOf(HasSubstr("b.bin"), HasSubstr("token 13"), HasSubstr("id 300"), HasSubstr("vocab_size is 300"));
  EXPECT_THAT(error_of<ConfigError>([&] { (void)TokenDataset::open({paths, 4, 300}); }), complains);
  (void)TokenDataset::open({paths, 4, 301});

  // Too big to scan at the start: found when its sequence is read. Global position 23 is in sequence 5.
  const auto dataset = TokenDataset::open({paths, 4, 300, 29});
  std::vector<std::int32_t> inputs(4);
  std::vector<std::int32_t> targets(4);
  for (const std::int64_t good : {0, 1, 2, 3, 4, 6}) dataset.read_sequence(good, inputs, targets);
  EXPECT_THAT(error_of<ConfigError>([&] { dataset.read_sequence(5, inputs, targets); }), complains);
  EXPECT_THAT(error_of<ConfigError>([&] { dataset.check_all_tokens(); }), complains);
  // As the last target of sequence 22 of T = 1.
  const auto ones = TokenDataset::open({paths, 1, 300, 0});
  EXPECT_THAT(error_of<ConfigError>([&] { ones.read_sequence(22, std::span(inputs).first(1), std::span(targets).first(1)); }), complains);
}

TEST(TokenDataset, VocabulariesMustFitTheModelAndEachOther) {
  const TemporaryFolder folder;
  const std::vector<std::uint32_t> ids{1, 2, 3, 4, 5};
  write_hdf5_tokens(folder / "a.h5", ids, {1000, "first"});
  write_hdf5_tokens(folder / "b.h5", ids, {1000, "second"});
  write_hdf5_tokens(folder / "c.h5", ids);
  EXPECT_THAT(error_of<ConfigError>([&] {
                (void)TokenDataset::open({{folder / "a.h5"}, 2, 999});
              }),
              AllOf(HasSubstr("a.h5"), HasSubstr("1000 ids"), HasSubstr("model.vocab_size=1000")));
  EXPECT_EQ(TokenDataset::open({{folder / "a.h5", folder / "c.h5"}, 2, 1024}).num_tokens(), 10);
  EXPECT_THAT(error_of<ConfigError>([&] {
                (void)TokenDataset::open({{folder / "c.h5", folder / "a.h5", folder / "b.h5"}, 2, 1000});
              }),
              AllOf(HasSubstr("'first'"), HasSubstr("'second'")));
  const auto open = [&](const std::string& name) { return TokenDataset::open({{folder / name}, 2, 1000}); };
  EXPECT_THAT(error_of<ConfigError>([&] { check_one_tokenizer(open("a.h5"), open("b.h5")); }),
              AllOf(HasSubstr("a.h5 and "), HasSubstr("b.h5 were made with different tokenizers")));
  check_one_tokenizer(open("a.h5"), open("a.h5"));
  check_one_tokenizer(open("c.h5"), open("b.h5"));
}

TEST(TokenDataset, RawFilesHoldNoIdsOfALargerVocabularyThanUint16) {
  const TemporaryFolder folder;
  const auto paths = counting_files(folder, {100});
  EXPECT_EQ(TokenDataset::open({paths, 4, 65536}).num_tokens(), 100);
  EXPECT_THAT(error_of<ConfigError>([&] {
                (void)TokenDataset::open({paths, 4, 65537});
              }),
              AllOf(HasSubstr("part-00.bin: a raw *.bin file holds uint16 ids"), HasSubstr("vocab_size is 65537")));
  write_llmc(folder / "llama.bin", 20240801, 7, 100, counting_tokens<std::uint32_t>(100));
  EXPECT_EQ(TokenDataset::open({{folder / "llama.bin"}, 4, 128256}).num_tokens(), 100);
}

// As with --data.train='tokens/*.h5' beside --data.val=tokens/x.val.h5.
TEST(TokenDataset, FilesThatAreNamedTwiceAreWarnedOf) {
  const TemporaryFolder folder;
  const auto paths = counting_files(folder, {10, 10, 10, 10});
  std::filesystem::create_symlink(paths[1], folder / "link.bin");
  std::filesystem::create_hard_link(paths[2], folder / "hard.bin");
  const auto warnings = [](const std::vector<std::string>& train, const std::vector<std::string>& val) {
    const auto train_data = TokenDataset::open({train, 4, 65536});
    if (val.empty()) return warnings_of_repeated_files(train_data, nullptr);
    const auto val_data = TokenDataset::open({val, 4, 65536});
    return warnings_of_repeated_files(train_data, &val_data);
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(warnings({paths[0], paths[1]}, {}), Texts{});
  EXPECT_EQ(warnings({paths[0], paths[1]}, {paths[2], paths[2]}), Texts{});
  std::filesystem::copy_file(paths[0], folder / "copy.bin");
  EXPECT_EQ(warnings({paths[0], folder / "copy.bin"}, {}), Texts{}) << "another file";
  EXPECT_EQ(warnings({paths[0], paths[1], folder / "link.bin"}, {}),
            Texts{"data.train names " + (folder / "link.bin") + " more than once: an epoch repeats those tokens"});
  const std::string both = ", as data.train does: the validation loss is of tokens that are trained on";
  EXPECT_EQ(warnings({folder / "part-*.bin"}, {paths[3]}), Texts{"data.val names " + paths[3] + both});
  EXPECT_EQ(warnings({folder / "part-*.bin"}, {folder / "hard.bin", paths[3]}),
            Texts{"data.val names " + (folder / "hard.bin") + " and 1 more" + both});
  EXPECT_EQ(warnings({paths[0], paths[0]}, {paths[0]}).size(), 2U);
}

TEST(TokenDataset, FingerprintTellsDataApart) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& name) { return TokenDataset::open({{folder / name}, 4, 65536}).fingerprint(); };
  auto ids = counting_tokens<std::uint16_t>(5000);
  write_text(folder / "a.bin", bytes_of(ids));
  write_text(folder / "same.bin", bytes_of(ids));
  ids[2500] ^= 1;
  write_text(folder / "one.bin", bytes_of(ids));
  ids[2500] ^= 1;
  ids.back() = 0;
  write_text(folder / "last.bin", bytes_of(ids));
  ids.pop_back();
  write_text(folder / "shorter.bin", bytes_of(ids));
  EXPECT_EQ(open("a.bin"), open("same.bin"));
  EXPECT_NE(open("a.bin"), open("one.bin")) << "a single token differs";
  EXPECT_NE(open("a.bin"), open("last.bin"));
  EXPECT_NE(open("last.bin"), open("shorter.bin"));
  EXPECT_THAT(open("a.bin"), HasSubstr("5000 tokens in 1 file,"));
  // Too large to be scanned: by a sample.
  const auto sampled = [&](const std::string& name) {
    return TokenDataset::open({.paths = {folder / name}, .seq_len = 4, .vocab_size = 65536, .scan_at_open_tokens = 100}).fingerprint();
  };
  EXPECT_EQ(sampled("a.bin"), sampled("same.bin"));
  EXPECT_NE(sampled("a.bin"), sampled("last.bin"));
}

// Ranks compare what they see, since only one of them takes the fingerprint.
TEST(TokenDataset, CopiesThatDifferInOneTokenOrInLengthAreToldApart) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& name, std::int64_t scanned) {
    return TokenDataset::open({.paths = {folder / name}, .seq_len = 4, .vocab_size = 65536, .scan_at_open_tokens = scanned})
        .copy_fingerprint();
  };
  auto ids = counting_tokens<std::uint16_t>(100'000);
  write_text(folder / "here.bin", bytes_of(ids));
  ids[300] ^= 1;  // between two samples
  write_text(folder / "there.bin", bytes_of(ids));
  ids.pop_back();
  write_text(folder / "shorter.bin", bytes_of(ids));
  EXPECT_NE(open("here.bin", 100'000), open("there.bin", 100'000));
  EXPECT_EQ(open("here.bin", 100), open("there.bin", 100)) << "samples only";
  EXPECT_NE(open("there.bin", 100), open("shorter.bin", 100));
  EXPECT_THAT(open("shorter.bin", 100), HasSubstr("99999 tokens in 1 file,"));
}

/// The number of a file's pages that are in memory.
std::int64_t resident_pages(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::size_t length = std::filesystem::file_size(path);
  std::vector<unsigned char> pages((length + 4095) / 4096);
  void* p = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd.get(), 0);
  EXPECT_EQ(::mincore(p, length, pages.data()), 0);
  ::munmap(p, length);
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1U) != 0; });
}

// The kernel reads up to megabytes around each page that is touched: 535 MB for 100 sequences of 1,024 tokens. The fingerprint is in
// manifests, so it must not change.
TEST(TokenDataset, ReadsOfAFileThatIsNotInMemoryWhatItNeeds) {
  const TemporaryFolder folder;
  const std::string path = folder / "large.bin";
  write_text(path, bytes_of(counting_tokens<std::uint16_t>(16 << 20, 0, 50257)));
  const auto forget = [&] {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return ::fsync(fd.get()) == 0 && ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0 && resident_pages(path) == 0;
  };
  ASSERT_TRUE(forget()) << "the pages of a file in " << folder.path() << " stay in memory: set TMPDIR to a folder on a disk";
  constexpr std::int64_t kSeqLen = 8192;  // 4 or 5 pages
  std::vector<std::int32_t> inputs(kSeqLen);
  std::vector<std::int32_t> targets(kSeqLen);
  std::string fingerprint;
  std::map<bool, std::int64_t> read;  // pages, by is_shuffled
  for (const bool is_shuffled : {false, true}) {
    ASSERT_TRUE(forget());
    const auto dataset = TokenDataset::open(
        {.paths = {path}, .seq_len = kSeqLen, .vocab_size = 65536, .scan_at_open_tokens = 1000, .is_shuffled = is_shuffled});
    EXPECT_LE(resident_pages(path), 400) << "of 8192, if they have 4 KiB";
    fingerprint = dataset.fingerprint();
    EXPECT_LE(resident_pages(path), 2000) << "each of 256 samples is on one or two pages";
    const std::int64_t before = resident_pages(path);
    for (std::int64_t i = 0; i < 20; ++i) dataset.read_sequence(i * 613 % dataset.num_sequences(), inputs, targets);
    read[is_shuffled] = resident_pages(path) - before;
    EXPECT_EQ(inputs, counting_tokens<std::int32_t>(kSeqLen, 19 * 613 % dataset.num_sequences() * kSeqLen, 50257));
  }
  EXPECT_LT(3 * read[true], read[false]) << "where the order is sequential, the pages that follow are needed next";
  EXPECT_EQ(fingerprint, "16777216 tokens in 1 file, crc32c 5f3cd4c4");
}

TEST(Batch, HoldsTheSampledSequencesInOrder) {
  const TemporaryFolder folder;
  const auto dataset = TokenDataset::open({counting_files(folder, {7, 6}), 3, 65536});
  ASSERT_EQ(dataset.num_sequences(), 4);
  Batch batch;
  read_batch(dataset, std::vector<SampledSequence>{{17, 4, 2}, {18, 4, 0}}, batch);
  const auto ids = [&](std::size_t tensor) {
    const TensorView view = batch.tensors.at(tensor).view();
    return std::vector(view.as<std::int32_t>(), view.as<std::int32_t>() + view.numel());
  };
  ASSERT_EQ(batch.tensors.size(), 2U);
  EXPECT_EQ(batch.tensors[0].view().shape, (Shape{2, 3}));
  EXPECT_EQ(batch.tensors[1].view().shape, (Shape{2, 3}));
  EXPECT_EQ(ids(0), (std::vector<std::int32_t>{6, 7, 8, 0, 1, 2}));
  EXPECT_EQ(ids(1), (std::vector<std::int32_t>{7, 8, 9, 1, 2, 3}));
  EXPECT_EQ(batch.global_ids, (std::vector<std::int64_t>{17, 18}));
  read_batch(dataset, {}, batch);
  EXPECT_EQ(batch.tensors[0].view().shape, (Shape{0, 3}));
  EXPECT_EQ(batch.tensors[1].view().shape, (Shape{0, 3}));
  EXPECT_TRUE(batch.global_ids.empty());
  read_batch(dataset, std::vector<SampledSequence>{{19, 4, 1}, {20, 4, 3}, {21, 4, 0}}, batch);
  EXPECT_EQ(ids(0), (std::vector<std::int32_t>{3, 4, 5, 9, 10, 11, 0, 1, 2})) << "more than before";
}

}  // namespace
}  // namespace mica::data
