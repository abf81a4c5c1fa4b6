// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace mica::train {

struct RunLockOptions {
  /// How often the owner writes to the lock.
  std::chrono::milliseconds heartbeat{2000};
  /// An owner on another host that has not written for this long is assumed dead.
  std::chrono::milliseconds lost_after{60000};
  /// run.take_over: do not wait for `lost_after`.
  bool take_over = false;
  /// Receives a one-line message before a wait.
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

/// Only one job owns a run's folder; RUN/run.lock says which one (host, process, since when). [Note: run lock] flock() is not reliable on
/// NFS and Lustre. So the lock relies only on what both guarantee: creating a file with O_EXCL succeeds for one job only, a rename is
/// atomic, a client that opens a file sees what others wrote before they closed it, and a host sees the files that its own jobs created.
/// - An owner on this host (same boot, same process namespace) is alive as long as its process is; a killed job never blocks.
/// - An owner elsewhere writes to the lock every `heartbeat`. A newcomer that sees it change is refused; otherwise it waits
///   until the last write is `lost_after` old and takes over. Ages are by the file server's clock: of the lock, and of a file
///   that the newcomer creates next to it.
/// - A job that was wrongly assumed dead (stopped, or cut off from the network) finds another owner in the lock at its next
/// heartbeat, or before it publishes a checkpoint, and ends: check().
/// Rank 0 only, except owner_in() and owner_has_died().
class RunLock {
 public:
  /// @throws ConfigError naming the owner, IoError.
  static RunLock acquire(const std::string& run_folder, const RunLockOptions& options = {});
  /// Deletes the lock if it is still this job's.
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;

  /// The owner of the folder and its process, as this host sees them; the text stays the same as long as the owner does. Empty: nobody.
  [[nodiscard]] static std::string owner_in(const std::string& run_folder);
  /// Whether the owner was a process of this host and has ended without giving the folder back. @throws IoError
  [[nodiscard]] static bool owner_has_died(const std::string& run_folder);

  /// @throws Error if another job has taken the folder over.
  void check() const;
  /// The result of the last heartbeat; costs nothing.
  [[nodiscard]] bool is_lost() const;

 private:
  class Owned;
  explicit RunLock(std::unique_ptr<Owned> owned);
  std::unique_ptr<Owned> owned_;
};

}  // namespace mica::train
