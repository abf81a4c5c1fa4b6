// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "mica/mpi/communicator.hpp"

namespace mica {

/// Ends a job that hangs or has lost a rank, and says which rank it is. [Note: watchdog]
/// A thread of each rank, outside MPI, whose calls may never return then. Ten times a second it
/// - gives a sign of life in the rank's log ([Note: flight recorder]), which all ranks of the node map;
/// - looks whether a collective that this rank has entered has not ended for the timeout. Time in which the process itself did not run
///   (a suspended job) does not count, nor does a clock that is set;
/// - looks whether the process of the next rank of its node is gone;
/// - the lowest rank of a node exchanges signs of life with those of the neighbouring nodes over TCP. Where TCP reaches none, it looks
///   whether there are records of this launch in the run's folder;
/// - looks whether another rank of its node has an alarm.
/// With an alarm a rank tells its node and the neighbouring nodes, and writes its record to RUN/hang/LAUNCH; the lowest rank
/// that lives on a node writes those of the dead and stopped ones there. The lowest rank that lives prints the report. If a rank has
/// died, each rank that lives then saves what it has ([Note: lost ranks]). Then the job ends with status 3.
/// A rank that computes, reads data or saves for long is no hang, as long as nobody waits for it in a collective for longer
/// than the timeout; nor is one in a debugger.
class Watchdog {
 public:
  static constexpr std::chrono::seconds kTimeout{300};
  /// At least, while ranks wait for those that read and write files.
  static constexpr std::chrono::seconds kFileTimeout{1800};

  /// Groups and Communicators that are made from now on are recorded. @collective
  explicit Watchdog(const mpi::Communicator& world);
  /// Looks no more. No group that it recorded is left.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// mesh.timeout
  void set_timeout(std::chrono::milliseconds timeout);
  /// While it lives, on every rank, the timeout is kFileTimeout if it is shorter: for saves and loads, in which ranks wait for the slowest
  /// one's files in one collective.
  class Patience {
   public:
    explicit Patience(Watchdog& of);
    ~Patience();
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;

   private:
    Watchdog& of_;
  };
  /// Where records go, and to which file the report is appended, too. Without a folder each node reports for itself.
  void set_folder(const std::string& run_folder, const std::string& log_file);
  /// @param why     "rank 3 is lost"
  /// @param linger  how long to stay once that is done, for the launcher to end the job by itself
  using Save = std::function<void(const std::string& why, std::chrono::duration<double> linger)>;
  /// Called on the watchdog's thread, on every rank that lives, when one has died, and before anybody ends the job. It returns if there
  /// is nothing to save. Empty: nothing is. Waits for a call under way.
  void set_save(Save save);

  /// The rank's work is done; it waits for the others.
  void note_closing();
  /// The rank ends by itself from here on, with an error of its own or none, and others do not count it as lost.
  void note_end();
  /// To be called before this rank ends the job for an error that may be another rank's death: if the watchdogs see one within a second,
  /// they end the job, and this does not return.
  void let_finish();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace mica
