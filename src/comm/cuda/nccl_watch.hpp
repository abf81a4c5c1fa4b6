// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "mica/device/stream.hpp"

#include "nccl_comm.hpp"

namespace mica::nccl {

/// Watches the collectives of all groups of a rank. [Note: NCCL groups]
/// A thread polls those in progress. If one fails or exceeds the timeout, the communication of the whole rank ends: every communicator
/// is aborted, because the others would wait for ranks that have stopped. This is final: later calls get the first error, and do
/// not use the aborted communicators.
class Watch {
 public:
  /// One collective in progress. on_end is called on the watch's thread, or by add() and end().
  struct Entry {
    std::string what;  ///< "group 'shard' (rank 1 of 4), reduce_scatter 'h.3' of 4096 bytes"
    Stream* stream = nullptr;
    Communicator* communicator = nullptr;
    const void* group = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;  ///< with timing; the watch recycles them
    std::function<void(bool succeeded, std::int64_t busy_ns)> on_end;
    std::chrono::steady_clock::time_point begun_at{};  ///< when the watch saw its stream reach it; set by the watch
  };

  Watch(int gpu, std::chrono::milliseconds timeout);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Two events with timing.
  void take_events(cudaEvent_t& begin, cudaEvent_t& end);
  /// Adds a collective that was enqueued. If the communication has ended meanwhile, it counts as failed.
  void add(Entry entry);
  /// Blocks until no collective of this group is in progress.
  void forget(const void* group);

  /// Ends the rank's communication, as for a collective that failed.
  void end(const std::string& why);
  /// The first error; empty as long as there is none.
  [[nodiscard]] std::string ended_by();

  /// If the communication has ended, aborts it at once.
  void add_communicator(Communicator& communicator);
  void remove_communicator(Communicator& communicator);

 private:
  void work();
  /// Removes finished collectives from the list. @return the first error, or an empty string
  std::string poll();
  void finish(Entry& entry, bool succeeded);
  void give_up(const std::string& why);  // under mutex_

  int gpu_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable work_, ended_;
  bool stop_ = false;
  std::string ended_by_;
  std::list<Entry> under_way_;
  std::vector<cudaEvent_t> spare_;
  std::vector<Communicator*> communicators_;
  std::thread thread_;
};

}  // namespace mica::nccl
