// SPDX-License-Identifier: Apache-2.0
#include "save_estimate.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "mica/io/raw_file.hpp"

namespace mica::train {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
/// For folders, indexes, the manifest and the ranks' agreements.
constexpr TimeLimit::Seconds kOverhead{1};

/// Seconds to write this many bytes to a new file, which has no name any more while it is written: a killed job leaves nothing behind.
double seconds_of_write(const std::string& path, std::int64_t bytes) {
  std::vector<std::uint64_t> noise(static_cast<std::size_t>(bytes) / 8 + 1);  // some file systems compress
  std::mt19937_64 random(1);
  std::ranges::generate(noise, random);
  const auto start = std::chrono::steady_clock::now();
  io::RawFile file = io::RawFile::create(path, io::Caching::direct);
  ::unlink(path.c_str());
  file.write_at(0, noise.data(), bytes);
  file.sync();
  file.close();
  return TimeLimit::Seconds(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TimeLimit::Seconds estimate_save(const HostComm& comm, const std::string& folder, std::int64_t shard_bytes) {
  const std::vector<std::string> all = comm.all_or_throw([&] {
    if (shard_bytes == 0) return std::string("0");
    const std::int64_t bytes = std::min(shard_bytes, kMostBytes);
    const double seconds = seconds_of_write(fmt::format("{}/write-test-{}.tmp", folder, comm.rank()), bytes);
    return std::to_string(seconds * static_cast<double>(shard_bytes) / static_cast<double>(bytes));
  });
  double slowest = 0;
  for (const std::string& seconds : all) slowest = std::max(slowest, std::stod(seconds));
  return 2 * TimeLimit::Seconds(slowest) + kOverhead;
}

}  // namespace mica::train
