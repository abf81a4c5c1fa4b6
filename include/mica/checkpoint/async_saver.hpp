#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "mica/checkpoint/save.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/device/pool.hpp"

namespace mica::checkpoint {

struct SaveJob;

/// Saves while training goes on: start() copies this rank's shards and returns; a thread writes the copies as save() would,
/// and the checkpoint becomes visible when it is complete. [Note: saving in the background]
/// - The copies' memory (role snapshot: as many bytes as the shards) is taken once, by reserve(), and used again.
/// - One save at a time: the next start() waits for the last.
/// - What fails in the background fails on every rank alike, and is thrown by the next start() or wait(); is_failed() tells
///   of it before, but on some ranks earlier than on others.
class AsyncSaver {
 public:
  /// @param background  ranks as in start()'s `comm`, over a communicator of its own: the thread communicates while the
  ///                    host trains (MPI_THREAD_MULTIPLE).
  /// @param pool        outlives it.
  AsyncSaver(std::unique_ptr<HostComm> background, Pool& pool);
  /// Waits for the thread; what it says is lost.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Takes the memory and touches it, so that the first save stalls no longer than the others.
  void reserve(const fsdp::Root& root, const optim::Optimizer* optimizer);

  /// Between passes. Training stands still for the wait for the last save, for the compute stream, and the copy.
  /// `state.root` is free when it returns; its layouts outlive the save.
  /// @throws what save() throws, of the last save too. @collective over `comm`
  void start(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options = {});
  /// Until nothing is being written. @throws what the last save threw, once.
  void wait();
  /// The last save, if it is complete; once.
  [[nodiscard]] std::optional<SaveReport> take_finished();
  [[nodiscard]] bool is_under_way() const { return !is_done_; }
  [[nodiscard]] bool is_failed() const { return is_done_ && failure_; }

 private:
  void write();
  void copy(SaveJob& job, fsdp::DeviceMesh& device_mesh);

  std::unique_ptr<HostComm> background_;
  Pool& pool_;
  Buffer snapshot_;
  SaveOptions options_;
  std::unique_ptr<SaveJob> job_;
  std::jthread thread_;
  std::atomic<bool> is_awaited_{false};  // somebody waits for the thread: it need not spare the training
  std::atomic<bool> is_done_{true};  // nothing is being written: report_ and failure_ are the host's
  std::exception_ptr failure_;
  std::optional<SaveReport> report_;
};

/// Bytes that AsyncSaver::reserve() takes: this rank's masters and optimizer state, 0 on ranks that write nothing.
[[nodiscard]] std::int64_t snapshot_bytes(const fsdp::Root& root, const optim::Optimizer* optimizer);

}  // namespace mica::checkpoint
