// SPDX-License-Identifier: Apache-2.0
#include "block_workers.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <sys/resource.h>

#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

namespace {

/// A thread of this niceness gets 3 % of a core that it shares with a computing thread.
constexpr int kBackgroundNiceness = 15;

/// Longer than a block takes on any disk fast enough to slow down a step, and short compared with a block on a slow disk.
constexpr auto kLongestRest = std::chrono::milliseconds(20);

/// Lowers this thread's priority for good: in Linux 0 is the calling thread. If the system refuses, nothing changes.
void give_way() { (void)::setpriority(PRIO_PROCESS, 0, kBackgroundNiceness); }

}  // namespace

BlockBuffer::BlockBuffer() : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, kBlockBytes))) {
  if (!memory_) throw std::bad_alloc();
}

void run_block_workers(std::int64_t num_jobs, std::int64_t bytes, const std::function<void(int worker, std::int64_t job)>& work,
                       const WorkerPace& pace) {
  const bool in_background = pace.priority == WorkerPriority::background;
  const std::int64_t num_workers = bytes <= kBlockBytes || num_jobs == 0 ? 1 : std::min<std::int64_t>(kNumBlockWorkers, num_jobs);
  std::atomic<bool> is_failed{false};
  std::mutex mutex;
  std::exception_ptr failure;
  std::int64_t failed_job = std::numeric_limits<std::int64_t>::max();
  const auto run = [&](std::int64_t worker) {
    if (in_background) give_way();
    const std::int64_t end = num_jobs * (worker + 1) / num_workers;
    for (std::int64_t job = num_jobs * worker / num_workers; job < end && !is_failed; ++job) {
      const auto begin = std::chrono::steady_clock::now();
      try {
        work(static_cast<int>(worker), job);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (job < failed_job) {
          failed_job = job;
          failure = std::current_exception();
        }
        is_failed = true;
      }
      if (in_background && !(pace.is_awaited && *pace.is_awaited)) {
        std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(std::chrono::steady_clock::now() - begin, kLongestRest));
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const std::int64_t first_other = in_background ? 0 : 1;
    for (std::int64_t worker = first_other; worker < num_workers; ++worker) others.emplace_back(run, worker);
    if (first_other == 1) run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace mica::checkpoint
