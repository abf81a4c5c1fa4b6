// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl_operation.hpp"
#include "queues.hpp"

namespace mica::cuda_emulation {

/// A collective, or a send and its receive, on its way: done when all have come. One that never happens (a rank hangs,
/// has failed, or is too late) hangs in the streams of its ranks until their communicators are aborted.
struct Meeting {
  std::vector<Operation> operations;  ///< by rank; {send, receive}
  std::size_t arrived = 0;
  bool done = false;
  bool never = false;
};

/// The ranks of one unique id: threads of this process.
class Clique {
 public:
  explicit Clique(int num_ranks) : members_(static_cast<std::size_t>(num_ranks)) {}

  /// @return what NCCL says to it at once
  ncclResult_t join(const std::shared_ptr<ncclComm>& comm);
  /// ncclInProgress until all ranks have joined.
  [[nodiscard]] ncclResult_t state();
  void wait_for_all();

  /// Brings an operation; the last to come executes. One that does not fit what the others ask for ends the process.
  std::shared_ptr<Meeting> post(const Operation& operation);
  /// How far it is for a rank that came at `begin`: done also when the rank's communicator is aborted.
  Progress progress_of(const Operation& operation, Meeting& meeting, std::chrono::steady_clock::time_point begin);
  /// What the rank has brought and has not happened never will: its memory may go.
  void abort(ncclComm& comm);

 private:
  std::shared_ptr<Meeting> meeting_of(const Operation& operation);
  void arrive(const Operation& operation, Meeting& meeting);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<ncclComm>> members_;
  int joined_ = 0;
  ncclResult_t state_ = ncclInProgress;
  std::deque<std::shared_ptr<Meeting>> collectives_;
  std::uint64_t first_collective_ = 0;                                                    ///< the number of collectives_[0]
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Meeting>>> sends_, receives_;  ///< unmatched, by (from, to)
};

/// For registered_operations().
void count_registered_operation();

/// Remembers the text for ncclGetLastError. @return result
ncclResult_t nccl_failed(ncclResult_t result, std::string text);

/// Null: there is none, or no longer.
std::shared_ptr<ncclComm> find_communicator(ncclComm_t comm);
ncclResult_t no_communicator();
/// ncclSuccess for a communicator whose last call has come to its end without an error.
ncclResult_t check_ready(const std::shared_ptr<ncclComm>& comm);
/// The answer of a call that is under way: a communicator that does not block wants to be asked.
ncclResult_t under_way(ncclComm& comm);

}  // namespace mica::cuda_emulation

struct ncclComm {
  std::shared_ptr<mica::cuda_emulation::Clique> clique;
  int rank = 0, num_ranks = 0, device = 0;
  bool is_blocking = true;
  bool is_finalized = false;
  std::uint64_t num_collectives = 0;  ///< that this rank has brought
  std::atomic<bool> is_aborted = false;
  std::atomic<int> polls = 0;  ///< how often ncclCommGetAsyncError still says ncclInProgress
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::atomic<int> num_enqueued = 0;  ///< operations in streams that are not over
};
