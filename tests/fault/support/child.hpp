// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "support/temporary_folder.hpp"

namespace mica::test {

/// How a child ended.
struct Finished {
  int status = -1;            ///< exit status, 128 + number for a signal
  bool is_timed_out = false;  ///< it had to be killed
  std::string output;         ///< standard output and standard error together
  double seconds = 0;         ///< from start to end
  /// Lines that begin with "mica: error:".
  [[nodiscard]] std::vector<std::string> error_lines() const;
};

/// A program that runs beside the test, with what scripts/environment.sh sets and one OpenMP thread. When a rank ends with a
/// status that is not 0, Open MPI's mpirun kills the others at once: by default it sleeps for 2 s first, also when all have ended.
class Child {
 public:
  /// @param environment  variables of its own.
  explicit Child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment = {});
  /// Kills what still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Process ids of the ranks that mpirun started, by rank. Waits until there are `num_ranks`, at most 20 s.
  [[nodiscard]] std::vector<pid_t> ranks(int num_ranks) const;
  [[nodiscard]] bool is_running();
  /// True once the output holds `text`; false when the child ended without it or the time is up.
  [[nodiscard]] bool wait_for(const std::string& text, double limit_s = 300);
  /// Waits for the end; after the deadline, kills.
  Finished wait(double limit_s = 300);

 private:
  [[nodiscard]] bool reap(int options);
  [[nodiscard]] std::string output_so_far();
  void kill_all();

  pid_t pid_ = -1;
  int read_fd_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool is_reaped_ = false;
  /// Where mpirun keeps its files: launchers that start and end at once in one folder make and remove it under each other.
  TemporaryFolder launcher_files_;
  Finished finished_;
  std::mutex mutex_;
  std::string output_;
  std::thread reader_;
};

/// Whether these processes are gone, or nobody has asked for their status yet, within the limit.
[[nodiscard]] bool have_ended(const std::vector<pid_t>& pids, double limit_s);

/// The words of both, one behind the other.
[[nodiscard]] std::vector<std::string> operator+(std::vector<std::string> command, const std::vector<std::string>& arguments);
/// mpirun -np RANKS PROGRAM ARGUMENTS...
[[nodiscard]] std::vector<std::string> under_mpirun(int num_ranks, const std::vector<std::string>& command);
/// Runs to the end.
[[nodiscard]] Finished run(const std::vector<std::string>& command, double limit_s = 300);

/// Inside a mount namespace of its own (root or not), runs `script` with "$@" = command: mounts made there vanish with it.
[[nodiscard]] std::vector<std::string> in_mount_namespace(const std::string& script, const std::vector<std::string>& command);

}  // namespace mica::test
