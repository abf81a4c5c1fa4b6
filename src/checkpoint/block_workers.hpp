// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

namespace mica::checkpoint {

/// Page-aligned memory for one block, as direct I/O needs it.
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
  /// Extra threads of low priority: they take the time that a training step leaves idle, and a few per cent of the rest. After each
  /// job they sleep for as long as it took, but at most kLongestRest.
  background,
};

struct WorkerPace {
  WorkerPriority priority = WorkerPriority::normal;
  /// For background workers: once it is true, they no longer sleep, since the host waits. Null: never.
  const std::atomic<bool>* is_awaited = nullptr;
};

/// Runs work(worker, job) for every job in [0, num_jobs), on kNumBlockWorkers threads, each of which has a range of
/// consecutive jobs in order, so that it reads or writes forward. If all jobs together move no more than a block (`bytes`), one thread
/// is used, which is the caller's unless in the background. After an exception no more jobs are started, and that of the lowest failed
/// job is rethrown.
void run_block_workers(std::int64_t num_jobs, std::int64_t bytes, const std::function<void(int worker, std::int64_t job)>& work,
                       const WorkerPace& pace = {});

}  // namespace mica::checkpoint
