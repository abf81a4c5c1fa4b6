// SPDX-License-Identifier: Apache-2.0
#include "../../../src/checkpoint/part_reader.hpp"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/io/raw_file.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using ::testing::HasSubstr;

/// A shard file with a dataset of two whole blocks and a bit.
class PartReaderTest : public ::testing::Test {
 protected:
  PartReaderTest() {
    test::with_one_rank({{{"weight", Shape{1021, 2311}, true}}}, [&](test::SavedModel& model) {
      model.fill(3);
      path_ = model.save(folder_.path(), 1).path;
    });
    file_ = read_manifest(path_).files.front();
    dataset_ = std::ranges::find(file_.datasets, "exp_avg", &DatasetEntry::kind).base();
    whole_.resize(static_cast<std::size_t>(dataset_->bytes));
    io::RawFile::open_for_reading(path_ + "/" + file_.name).read_at(dataset_->offset, whole_.data(), dataset_->bytes);
  }
  /// Reads ranges of bytes at once.
  void read(PartReader& reader, const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges) const {
    std::vector<std::vector<std::byte>> found;
    for (const auto& [begin, end] : ranges) found.emplace_back(static_cast<std::size_t>(end - begin));
    std::vector<PartReader::Part> parts;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      parts.push_back({ranges[i].first, ranges[i].second - ranges[i].first, found[i].data()});
    }
    reader.read(file_, *dataset_, parts);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_TRUE(std::equal(found[i].begin(), found[i].end(), whole_.begin() + ranges[i].first))
          << ranges[i].first << " to " << ranges[i].second;
    }
  }
  void flip(std::int64_t at) const {
    auto file = io::RawFile::open_for_writing(path_ + "/" + file_.name);
    const std::byte other = whole_[static_cast<std::size_t>(at)] ^ std::byte{1};
    file.write_at(dataset_->offset + at, &other, 1);
  }

  test::TemporaryFolder folder_;
  std::string path_;
  FileEntry file_;
  const DatasetEntry* dataset_ = nullptr;
  std::vector<std::byte> whole_;
};

TEST_F(PartReaderTest, PartsOfAnySizeInAnyOrder) {
  ASSERT_EQ(dataset_->num_blocks(), 3);
  std::mt19937 random(1);
  for (const std::int64_t most : {100, 70000, 3000000}) {
    PartReader reader(path_, 1);
    for (int call = 0; call < 20; ++call) {
      std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
      for (std::int64_t at = std::uniform_int_distribution<std::int64_t>(0, dataset_->bytes / 2)(random);;) {
        const std::int64_t begin = at + (random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random()) % most);
        at = begin + 1 + static_cast<std::int64_t>(random()) % most;
        if (at > dataset_->bytes || ranges.size() == 200) break;
        ranges.emplace_back(begin, at);
      }
      read(reader, ranges);
    }
    read(reader, {{0, dataset_->bytes}});
    reader.finish();
  }
}

TEST_F(PartReaderTest, ABlockIsCheckedAsAWholeHoweverLittleIsRead) {
  flip(kBlockBytes + 12345);
  PartReader reader(path_, 1);
  read(reader, {{100, 200}, {2 * kBlockBytes, 2 * kBlockBytes + 10}});
  reader.finish();  // the damaged block was not wanted
  for (const std::int64_t at : {kBlockBytes, kBlockBytes + 2000000, 2 * kBlockBytes - 1}) {
    PartReader other(path_, 1);
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] {
                  read(other, {{at, at + 1}});
                  other.finish();
                }),
                HasSubstr("bytes 4194304 to 8388607 of the dataset"));
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { other.finish(); }), HasSubstr("damaged")) << "once more";
  }
}

// Loads never call finish(): they ask for all of each block, in order.
TEST_F(PartReaderTest, ABlockIsCheckedOnceAllOfItWasAskedFor) {
  flip(kBlockBytes + 12345);
  PartReader reader(path_, 1);
  const std::int64_t end = 2 * kBlockBytes;
  read(reader, {{0, kBlockBytes}, {end, dataset_->bytes}});
  std::vector<std::byte> found(static_cast<std::size_t>(kBlockBytes));
  for (std::int64_t at = kBlockBytes; at < end; at += kBlockBytes / 4) {
    const auto read_part = [&] { reader.read(file_, *dataset_, {at, kBlockBytes / 4, found.data()}); };
    if (at + kBlockBytes / 4 < end) {
      read_part();
    } else {
      EXPECT_THAT(error_of<DamagedCheckpointError>(read_part), HasSubstr("bytes 4194304 to 8388607 of the dataset"));
    }
  }
}

}  // namespace
}  // namespace mica::checkpoint
