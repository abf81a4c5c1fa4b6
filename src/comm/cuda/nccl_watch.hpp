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

/// Looks after the collectives of all groups of a rank. [Note: NCCL groups]
/// A thread polls what is under way. A collective that fails or lasts too long ends the communication of the whole rank:
/// every communicator is aborted, since the others would wait for ranks that have stopped. That is for good: whatever is
/// asked for afterwards is told why, and goes nowhere near a communicator that is no more.
class Watch {
 public:
  /// One collective under way. The callbacks come on the watch's thread.
  struct Entry {
    std::string what;  ///< "group 'shard' (rank 1 of 4), reduce_scatter 'h.3' of 4096 bytes"
    Stream* stream = nullptr;
    Communicator* communicator = nullptr;
    const void* group = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;  ///< with times; given back by the watch
    std::function<void(bool succeeded, std::int64_t busy_ns)> on_end;
    std::chrono::steady_clock::time_point begun_at{};  ///< when the watch saw its stream get there; set by the watch
  };

  Watch(int gpu, std::chrono::milliseconds timeout);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  /// Two events with times.
  void take_events(cudaEvent_t& begin, cudaEvent_t& end);
  /// A collective that was enqueued; if the communication has ended meanwhile, it has failed.
  void add(Entry entry);
  /// Comes back when nothing of this group is under way any more.
  void forget(const void* group);

  /// Ends the rank's communication, as for a collective that failed.
  void end(const std::string& why);
  /// What went wrong first; empty while the communication goes on.
  [[nodiscard]] std::string ended_by();

  /// Aborted at once if the communication has ended.
  void add_communicator(Communicator& communicator);
  void remove_communicator(Communicator& communicator);

 private:
  void work();
  /// Takes what has ended off the list. @return what went wrong, empty if nothing
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
