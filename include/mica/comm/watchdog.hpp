// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "mica/mpi/communicator.hpp"

namespace mica {

/// Ends a job that hangs or has lost a rank, and says which rank it is. [Note: watchdog]
/// Each rank has a watchdog thread, which makes no MPI calls, because those may never return after a failure. Ten times a second it
/// - updates a heartbeat in the rank's log ([Note: flight recorder]), which all ranks of the node map;
/// - checks whether a collective that this rank has entered has lasted for longer than the timeout. Time in which the process was suspended
///   does not count, nor do changes of the system's clock;
/// - checks whether the process of the next rank on its node is gone;
/// - on the lowest rank of a node, exchanges heartbeats with the neighbouring nodes over TCP. Where TCP reaches none of them, it looks
///   for records of this launch in the run's folder;
/// - checks whether another rank of its node has raised an alarm.
/// A rank with an alarm tells its node and the neighbouring nodes, and writes its record to RUN/hang/LAUNCH; the lowest surviving rank
/// of a node writes those of the node's dead and stopped ranks. The lowest surviving rank of the job prints the report. If a rank has
/// died, each surviving rank then saves what it has ([Note: lost ranks]). Then the job ends with status 3.
/// A rank that computes, reads data or saves for a long time does not hang, as long as no other rank waits for it in a collective for
/// longer than the timeout. Neither does a rank in a debugger.
class Watchdog {
 public:
  static constexpr std::chrono::seconds kTimeout{300};
  /// The shortest timeout while ranks wait for others that read and write files.
  static constexpr std::chrono::seconds kFileTimeout{1800};

  /// Records the groups and Communicators that are made from now on. @collective
  explicit Watchdog(const mpi::Communicator& world);
  /// Stops the thread. The groups that it recorded must be gone.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// mesh.timeout
  void set_timeout(std::chrono::milliseconds timeout);
  /// While all ranks hold one, the timeout is at least kFileTimeout: for saves and loads, in which all ranks wait in one collective for the
  /// slowest one's files.
  class Patience {
   public:
    explicit Patience(Watchdog& of);
    ~Patience();
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;

   private:
    Watchdog& of_;
  };
  /// Where records go, and the file to which the report is appended. Without a folder each node reports for itself.
  void set_folder(const std::string& run_folder, const std::string& log_file);
  /// @param why     "rank 3 is lost"
  /// @param linger  how long to wait after the save, so that the launcher can end the job by itself
  using Save = std::function<void(const std::string& why, std::chrono::duration<double> linger)>;
  /// `save` is called on every surviving rank's watchdog thread when a rank has died, before the job is ended. It returns if there is
  /// nothing to save. Empty: there never is. set_save() waits for a call under way.
  void set_save(Save save);

  /// How long this rank has been in a collective that it has not left: the longest time if there are several, 0 if there is none. Any
  /// thread.
  [[nodiscard]] std::chrono::duration<double> waits() const;

  /// To be called once this rank's work is done, before it waits for the others.
  void note_closing();
  /// From here on this rank may end at any time, with an error or without one; other ranks do not count it as lost.
  void note_end();
  /// To be called before this rank ends the job because of an error that another rank's death may have caused: if the watchdogs notice a
  /// death within a second, they end the job, and this does not return.
  void let_finish();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace mica
