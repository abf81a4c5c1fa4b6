#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace mica::train {

struct RunLockOptions {
  /// The owner writes to the lock this often.
  std::chrono::milliseconds heartbeat{2000};
  /// An owner on another host that has not written for this long is taken for dead.
  std::chrono::milliseconds lost_after{60000};
  /// run.take_over: does not wait for `lost_after`.
  bool take_over = false;
  /// Receives a one-line message before a wait.
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

/// One job owns a run's folder: RUN/run.lock says which (host, process, since when). [Note: run lock]
/// flock() is not reliable on NFS and Lustre, so only what both guarantee is used: creating a file with O_EXCL succeeds for one
/// job alone, a rename replaces it in one step, and what one client has written and closed another client sees when it opens.
/// - An owner on this host (same boot, same process namespace) is alive while its process is; a killed one never blocks.
/// - An owner elsewhere writes to the lock every `heartbeat`. A newcomer that sees it change is refused; one that does not
///   waits until the last write is `lost_after` old, and takes over. Ages are read from the file server's clock: of the lock
///   and of a file that the newcomer makes beside it.
/// - Whoever was taken for dead and was not (a stopped process, a network that was away) finds another owner in the lock at
///   its next heartbeat and before it publishes a checkpoint, and ends: check().
/// Rank 0 only.
class RunLock {
 public:
  /// @throws ConfigError naming the owner, IoError.
  static RunLock acquire(const std::string& run_folder, const RunLockOptions& options = {});
  /// Deletes the lock if it is still this job's.
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;

  /// @throws Error when another job has taken the folder over.
  void check() const;
  /// What the last heartbeat found; costs nothing.
  [[nodiscard]] bool is_lost() const;

 private:
  class Owned;
  explicit RunLock(std::unique_ptr<Owned> owned);
  std::unique_ptr<Owned> owned_;
};

}  // namespace mica::train
