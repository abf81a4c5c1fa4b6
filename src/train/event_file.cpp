// SPDX-License-Identifier: Apache-2.0
#include "mica/train/event_file.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include <fmt/format.h>
#include <unistd.h>

#include "mica/core/host.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"

namespace mica::train {
namespace {

/// Writes a protobuf message, with the few field types that events need.
class Message {
 public:
  void add_varint(int field, std::uint64_t value) {
    key(field, 0);
    varint(value);
  }
  void add(int field, double value) {
    key(field, 1);
    little_endian(std::bit_cast<std::uint64_t>(value));
  }
  void add(int field, const std::string& bytes) {  // also for a nested message
    key(field, 2);
    varint(bytes.size());
    bytes_ += bytes;
  }
  void add(int field, float value) {
    key(field, 5);
    little_endian(std::bit_cast<std::uint32_t>(value));
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, unsigned type) { varint(static_cast<std::uint64_t>(field) << 3U | type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>(value | 0x80U);
    bytes_ += static_cast<char>(value);
  }
  template <class T>
  void little_endian(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFFU);
  }

  std::string bytes_;
};

/// The beginning of event.proto's Event: time and step.
Message event_at(double wall_time, std::int64_t step) {
  constexpr int kWallTime = 1, kStep = 2;
  Message event;
  event.add(kWallTime, wall_time);
  if (step != 0) event.add_varint(kStep, static_cast<std::uint64_t>(step));
  return event;
}

std::string path_of(const std::string& run_folder, double wall_time) {
  const std::string folder = run_folder + "/tensorboard";
  io::make_folder(folder, "; is the run folder writable?");
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder, static_cast<std::int64_t>(wall_time), host_name(), ::getpid());
}

/// TFRecord masks its checksums, since a CRC of data that contains CRCs is weak.
std::uint32_t masked_crc32c(const std::string& bytes) {
  const std::uint32_t crc = io::crc32c(bytes.data(), std::ssize(bytes));
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

std::string four_bytes(std::uint32_t value) {
  std::string bytes;
  for (unsigned i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFFU);
  return bytes;
}

}  // namespace

std::string framed_record(const std::string& bytes) {
  const std::string length = four_bytes(static_cast<std::uint32_t>(bytes.size())) + four_bytes(0);
  return length + four_bytes(masked_crc32c(length)) + bytes + four_bytes(masked_crc32c(bytes));
}

EventFile::EventFile(const std::string& run_folder, double wall_time, std::int64_t first_step, std::function<void(const std::string&)> warn)
    : file_(path_of(run_folder, wall_time), std::move(warn)) {
  constexpr int kFileVersion = 3, kSessionLog = 7, kStatus = 1, kStarted = 1;
  Message version = event_at(wall_time, 0);
  version.add(kFileVersion, std::string("brain.Event:2"));
  Message session;
  session.add_varint(kStatus, kStarted);
  Message start = event_at(wall_time, first_step);
  start.add(kSessionLog, session.bytes());
  file_.append(framed_record(version.bytes()) + framed_record(start.bytes()));
}

void EventFile::write(double wall_time, std::int64_t step, const std::vector<TaggedValue>& values) {
  constexpr int kSummary = 5, kValue = 1, kTag = 1, kSimpleValue = 2;
  Message summary;
  for (const auto& [tag, number] : values) {
    Message value;
    value.add(kTag, tag);
    value.add(kSimpleValue, static_cast<float>(number));
    summary.add(kValue, value.bytes());
  }
  Message event = event_at(wall_time, step);
  event.add(kSummary, summary.bytes());
  file_.append(framed_record(event.bytes()));
}

}  // namespace mica::train
