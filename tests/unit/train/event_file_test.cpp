// SPDX-License-Identifier: Apache-2.0
#include "mica/train/event_file.hpp"

#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::Pair;

template <class T>
T number_at(const std::string& bytes, std::size_t at) {
  T value{};
  EXPECT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::uint32_t masked(const std::string& bytes) {
  const std::uint32_t crc = io::crc32c_portable(bytes.data(), std::ssize(bytes));
  return (crc >> 15U | crc << 17U) + 0xa282ead8U;
}

/// The records of a file, each with its checksums looked at.
std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = number_at<std::uint64_t>(file, at);
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 8), masked(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 12 + length), masked(records.back()));
    at += 16 + length;
  }
  return records;
}

/// A protobuf message by field number: the bytes of each field, varints as decimal text.
std::multimap<int, std::string> fields_of(const std::string& message) {
  std::multimap<int, std::string> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    const auto field = static_cast<int>(key >> 3U);
    std::size_t length = 0;
    switch (key & 7U) {
      case 0:
        fields.emplace(field, std::to_string(varint()));
        continue;
      case 1:
        length = 8;
        break;
      case 2:
        length = varint();
        break;
      case 5:
        length = 4;
        break;
      default:
        ADD_FAILURE() << "type " << (key & 7U);
        return fields;
    }
    fields.emplace(field, message.substr(at, length));
    at += length;
  }
  return fields;
}

std::string one(const std::multimap<int, std::string>& fields, int field) {
  EXPECT_EQ(fields.count(field), 1u) << field;
  const auto found = fields.find(field);
  return found == fields.end() ? "" : found->second;
}

// What TensorBoard's own RecordWriter makes of the event brain.Event:2 at time 1.5.
TEST(EventFile, ARecordIsTensorBoards) {
  const std::string event = std::string("\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d", 11) + "brain.Event:2";
  const std::string sample = std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12) + event + "\x2a\x28\x64\x6c";
  EXPECT_EQ(framed_record(event), sample);
  EXPECT_THAT(records_of(sample), ElementsAre(event));
}

TEST(EventFile, HoldsScalarsByStep) {
  const TemporaryFolder folder;
  {
    EventFile events(folder.path(), 1700000000.25, 301, [](const std::string& text) { FAIL() << text; });
    events.write(1700000001.5, 301, {{"train/loss", 2.5}, {"speed/step_ms", 150}});
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "tensorboard")) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(std::filesystem::path(files[0]).filename().string(), ::testing::StartsWith("events.out.tfevents.1700000000."));
  const std::vector<std::string> records = records_of(io::read_file(files[0]));
  ASSERT_EQ(records.size(), 3u);
  const auto version = fields_of(records[0]), start = fields_of(records[1]), event = fields_of(records[2]);
  EXPECT_EQ(number_at<double>(one(version, 1), 0), 1700000000.25);
  EXPECT_EQ(one(version, 3), "brain.Event:2");
  EXPECT_EQ(one(start, 2), "301") << "what other files have from this step on is dropped";
  EXPECT_EQ(one(fields_of(one(start, 7)), 1), "1") << "SessionLog.START";
  EXPECT_EQ(one(event, 2), "301");
  EXPECT_EQ(number_at<double>(one(event, 1), 0), 1700000001.5);
  const auto summary = fields_of(one(event, 5));
  std::vector<std::pair<std::string, float>> values;
  for (const auto& [field, value] : summary) {
    EXPECT_EQ(field, 1);
    values.emplace_back(one(fields_of(value), 1), number_at<float>(one(fields_of(value), 2), 0));
  }
  EXPECT_THAT(values, ElementsAre(Pair("train/loss", FloatEq(2.5F)), Pair("speed/step_ms", FloatEq(150))));
}

}  // namespace
}  // namespace mica::train
