// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mica/checkpoint/save.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/device/pool.hpp"

namespace mica::checkpoint {

struct SaveJob;

/// Saves while training goes on: start() copies this rank's shards and returns; a thread writes the copies as save() would,
/// and the checkpoint becomes visible when it is complete. [Note: saving in the background]
/// - The copies' memory (role snapshot: as many bytes as the shards) is allocated once, by reserve(), and reused.
/// - One save at a time: the next start() waits for the previous one.
/// - A save that fails is retried from the same copy, as `retries` says.
/// - A failure in the background is the same on every rank and is thrown by the next start() or wait(); is_failed() reports it
///   earlier, but not on all ranks at the same time.
class AsyncSaver {
 public:
  /// @param background  the ranks of start()'s `comm`, over a separate communicator: the thread communicates while the
  ///                    host trains (MPI_THREAD_MULTIPLE).
  /// @param pool        outlives it.
  /// @param retries     called on the saver's thread; take_failed_attempts() gives the texts, so `tell` stays empty
  AsyncSaver(std::unique_ptr<HostComm> background, Pool& pool, Retries retries = {});
  /// Waits for the thread; its result is lost.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Allocates the memory and touches it, so that the first save stalls no longer than the others.
  void reserve(const fsdp::Root& root, const optim::Optimizer* optimizer);

  /// Between passes. Training stalls while this waits for the previous save and the compute stream, and copies. `state.root`
  /// may change afterwards; its layouts outlive the save.
  /// @throws what save() throws, also for the previous save. @collective over `comm`
  void start(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options = {});
  /// Waits until nothing is being written. @throws what the last save threw, once.
  void wait();
  /// Waits at most this long; does not throw. @returns whether nothing is being written
  [[nodiscard]] bool wait_for(std::chrono::milliseconds time);
  /// The report of the last save, once, if that is complete.
  [[nodiscard]] std::optional<SaveReport> take_finished();
  /// Errors of attempts that are retried, with the time of the next attempt; each once.
  [[nodiscard]] std::vector<std::string> take_failed_attempts();
  [[nodiscard]] bool is_under_way() const { return !is_done_; }
  [[nodiscard]] bool is_failed() const { return is_done_ && failure_; }

 private:
  void write();
  [[nodiscard]] Retries with_own_hooks(Retries retries);
  void copy(SaveJob& job, fsdp::DeviceMesh& device_mesh);

  std::unique_ptr<HostComm> background_;
  Pool& pool_;
  const Retries retries_;
  Buffer snapshot_;
  SaveOptions options_;
  std::unique_ptr<SaveJob> job_;
  std::jthread thread_;
  std::mutex mutex_;  // for failed_attempts_ and done_
  std::vector<std::string> failed_attempts_;
  std::condition_variable done_;
  std::atomic<bool> is_ending_{false};   // no more retries
  std::atomic<bool> is_awaited_{false};  // the host waits, so the thread need not go slowly to spare the training
  std::atomic<bool> is_done_{true};      // nothing is being written, so the host may access report_ and failure_
  std::exception_ptr failure_;
  std::optional<SaveReport> report_;
};

/// Bytes that AsyncSaver::reserve() allocates: this rank's masters and optimizer state, 0 on ranks that write nothing.
[[nodiscard]] std::int64_t snapshot_bytes(const fsdp::Root& root, const optim::Optimizer* optimizer);

}  // namespace mica::checkpoint
