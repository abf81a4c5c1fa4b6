// SPDX-License-Identifier: Apache-2.0
#include "start_record.hpp"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"
#include "mica/io/json.hpp"

namespace mica::train {
namespace {

constexpr std::int64_t kMostStarts = 2;

struct Starts {
  std::int64_t step = 0;
  std::string config_crc32c;
  std::int64_t count = 0;  ///< from that step with that config, in a row
};

/// No starts if the file does not exist: this is the first launch, or the file was deleted.
Starts read(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  try {
    const auto json = io::JsonValue::parse<ConfigError>(io::read_file(path), path);
    return {json["step"].integer(0), json["config_crc32c"].text(), json["starts"].integer(0)};
  } catch (const ConfigError&) {  // damaged: count from zero
    return {};
  }
}

void write(const std::string& path, const Starts& starts) {
  const nlohmann::ordered_json json{{"step", starts.step}, {"starts", starts.count}, {"config_crc32c", starts.config_crc32c}};
  io::write_file_atomically(path, json.dump() + "\n");
}

}  // namespace

StartRecord::StartRecord(const std::string& run_folder) : run_folder_(run_folder), path_(run_folder + "/starts.json") {}

void StartRecord::begin(std::int64_t step, std::string_view config) const {
  Starts next{step, fmt::format("{:08x}", io::crc32c(config.data(), static_cast<std::int64_t>(config.size())))};
  const Starts last = read(path_);
  if (last.step == step && last.config_crc32c == next.config_crc32c) next.count = last.count;
  if (next.count >= kMostStarts) {
    remove();
    throw Error(fmt::format(
        "this run makes no progress: its last {} starts began after step {}, as this one would, and left no later step to resume from. "
        "{}/log.txt says how they ended; often the time limit is shorter than a start, a step and a save, or a "
        "node fails. This start ends, so that the job is not requeued forever. Fix the cause and start the same command again",
        kMostStarts, step, run_folder_));
  }
  ++next.count;
  write(path_, next);
}

void StartRecord::remove() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void StartRecord::withdraw() const {
  try {
    Starts last = read(path_);
    if (last.count == 0) return;
    --last.count;
    write(path_, last);
  } catch (const IoError&) {
    // Another error is being reported, which matters more than the count.
  }
}

}  // namespace mica::train
