// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "mica/checkpoint/emergency_saver.hpp"

namespace mica::train {

/// What a rank does when others are lost: it saves, together with the ranks that are left ([Note: emergency checkpoint]), and ends with
/// status 75. [Note: lost ranks] MPI calls may never return after a loss. So everything here runs without MPI, and may run while the main
/// thread is stuck in it. There are three triggers:
/// - a collective returned an error: the main thread calls save_and_exit();
/// - a watcher outside MPI, such as the watchdog, knows that a rank is lost: any thread calls save_and_exit();
/// - the launcher ends the job with SIGTERM because a rank died, and this rank has been in one collective for kStall since then: a thread
///   here calls it. While collectives complete, all ranks are alive, and the run stops normally at the end of its step.
class LostRanks {
 public:
  struct Hooks {
    /// How long this rank has been in a collective; 0 if it is in none. Any thread.
    std::function<std::chrono::duration<double>()> waits;
    /// Called on the rank that completed the checkpoint.
    std::function<void(const checkpoint::SaveReport&)> tell_saved;
    /// Takes one line. Called on any rank.
    std::function<void(const std::string&)> warn;
    /// Called after a save: this rank is about to exit.
    std::function<void()> exits;
    std::string how_to_go_on;  ///< how_to_go_on(), for the message
  };
  static constexpr std::chrono::seconds kStall{3};

  /// @param saver  outlives it
  LostRanks(checkpoint::EmergencySaver& saver, Hooks hooks);
  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  /// Saves and ends the process with status 75. Returns only if the ranks that are left cannot save, after a warning that says why. Any
  /// thread. @param why  "rank 3 is lost"  @param linger  how long it waits after a save before it exits, unless SIGTERM comes first
  void save_and_exit(const std::string& why, std::chrono::duration<double> linger = {});

  /// While it exists, SIGTERM alone does not make this rank save: it is in a save, where ranks wait for each other's files.
  class Pause {
   public:
    explicit Pause(LostRanks* of) : of_(of) {
      if (of_ != nullptr) ++of_->num_pauses_;
    }
    ~Pause() {
      if (of_ != nullptr) --of_->num_pauses_;
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    LostRanks* of_;
  };

 private:
  void tell_saved(const checkpoint::SaveReport& report) const;
  void watch(const std::stop_token& stop);

  checkpoint::EmergencySaver& saver_;
  Hooks hooks_;
  std::atomic<int> num_pauses_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace mica::train
