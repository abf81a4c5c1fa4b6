// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

namespace mica::checkpoint {

/// Page-aligned memory for one block, so that it can be moved past the page cache.
class BlockBuffer {
 public:
  BlockBuffer();
  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

/// Two: one waits for the disk while the other computes checksums.
inline constexpr int kNumBlockWorkers = 2;

enum class WorkerPriority : std::uint8_t {
  normal,
  /// Threads of their own that give way to whatever else wants their core: what a training step leaves idle, and a few
  /// per cent of what it does not. After a job they rest as long as it took, kLongestRest at most.
  background,
};

struct WorkerPace {
  WorkerPriority priority = WorkerPriority::normal;
  /// In the background: once it is true somebody waits, and they rest no more. Null: never.
  const std::atomic<bool>* is_awaited = nullptr;
};

/// Runs work(worker, job) for every job in [0, num_jobs), on kNumBlockWorkers threads, each of which has a run of
/// neighbouring jobs in order, so that it reads or writes forward; on this thread alone where all jobs together move no
/// more than a block (`bytes`), unless in the background. After an exception no more jobs are started, and the one of the lowest failed job
/// is rethrown.
void run_block_workers(std::int64_t num_jobs, std::int64_t bytes, const std::function<void(int worker, std::int64_t job)>& work,
                       const WorkerPace& pace = {});

}  // namespace mica::checkpoint
