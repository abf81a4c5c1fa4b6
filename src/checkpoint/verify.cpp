// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/verify.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>

#include "block_workers.hpp"
#include "part_reader.hpp"

namespace mica::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// One block; dataset < 0: the rest of a file.
struct BlockCheck {
  std::size_t file;
  std::int64_t dataset;
  std::int64_t block;
};

std::vector<BlockCheck> jobs_of(const std::vector<const FileEntry*>& files) {
  std::vector<BlockCheck> jobs;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto& datasets = files[f]->datasets;
    for (std::size_t d = 0; d < datasets.size(); ++d) {
      for (std::int64_t b = 0; b < datasets[d].num_blocks(); ++b) jobs.push_back({f, static_cast<std::int64_t>(d), b});
    }
    jobs.push_back({f, -1, 0});  // last: its parts are scattered, and in the page cache by then
  }
  return jobs;
}

/// Checks blocks and collects the damage.
class Verifier {
 public:
  Verifier(const std::string& folder, const Manifest& manifest, VerifyReport& report,
           const std::function<void(std::int64_t, std::int64_t)>& progress)
      : folder_(folder), files_(manifest.all_files()), total_bytes_(manifest.total_bytes()), report_(report), progress_(progress) {}

  void run() {
    for (const FileEntry* file : files_) forget_cached(*file);
    const std::vector<BlockCheck> jobs = jobs_of(files_);
    std::vector<PartReader> readers;
    for (int w = 0; w < kNumBlockWorkers; ++w) readers.emplace_back(folder_, /*max_open=*/1);
    run_block_workers(static_cast<std::int64_t>(jobs.size()), total_bytes_, [&](int worker, std::int64_t j) {
      const BlockCheck& job = jobs[static_cast<std::size_t>(j)];
      std::string damage;
      try {
        check(readers[static_cast<std::size_t>(worker)], job);
      } catch (const DamagedCheckpointError& e) {
        damage = e.what();
      } catch (const IoError& e) {
        damage = e.what();
      }
      finish(job, damage);
    });
    report_.damage.assign(damage_.begin(), damage_.end());
  }

 private:
  /// Drops the page cache, so that the disk is checked and not a copy in memory.
  void forget_cached(const FileEntry& file) const {
    try {
      io::RawFile::open_for_reading(folder_ + "/" + file.name).drop_cache();
    } catch (const IoError&) {  // check() reports it
    }
  }

  void check(PartReader& reader, const BlockCheck& job) const {
    const FileEntry& file = *files_[job.file];
    if (job.dataset < 0) return reader.check_rest(file);
    reader.check_block(file, file.datasets[static_cast<std::size_t>(job.dataset)], job.block);
  }

  void finish(const BlockCheck& job, const std::string& damage) {
    const FileEntry& file = *files_[job.file];
    std::int64_t bytes = 0;
    if (job.dataset >= 0) {
      bytes = file.datasets[static_cast<std::size_t>(job.dataset)].block_bytes(job.block);
    } else {
      bytes = file.bytes;
      for (const DatasetEntry& dataset : file.datasets) bytes -= dataset.bytes;
    }
    const std::lock_guard lock(mutex_);
    report_.bytes += bytes;
    if (!damage.empty()) damage_.insert(damage);
    if (progress_) progress_(report_.bytes, total_bytes_);
  }

  const std::string& folder_;
  std::vector<const FileEntry*> files_;
  std::int64_t total_bytes_;
  VerifyReport& report_;
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  std::mutex mutex_;              // report_, progress_, damage_
  std::set<std::string> damage_;  // a set: a file that cannot be opened gives the same text for each of its blocks
};

}  // namespace

VerifyReport verify(const std::string& checkpoint_folder, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto start = Clock::now();
  VerifyReport report;
  try {
    const Manifest manifest = read_manifest(checkpoint_folder);
    Verifier(checkpoint_folder, manifest, report, progress).run();
  } catch (const DamagedCheckpointError& e) {
    report.damage.push_back(e.what());
  }
  report.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return report;
}

}  // namespace mica::checkpoint
