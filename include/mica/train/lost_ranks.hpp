// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "mica/checkpoint/emergency_saver.hpp"

namespace mica::train {

/// What a rank does when others are lost: it saves, together with the others that are left ([Note: emergency checkpoint]), and
/// ends with status 75. [Note: lost ranks] Calls into MPI may never return then. So everything here runs without MPI, and
/// may run beside a main thread that is stuck in it. Three ways lead here:
/// - a collective returned an error: the main thread calls save_and_exit();
/// - whoever watches the ranks from outside MPI knows that one is lost: any thread calls save_and_exit();
/// - the launcher ends the job with SIGTERM because a rank died, and no collective ends for kStall: a thread here calls it. Where
///   collectives do end, all ranks are there, and the run stops in order at the end of its step.
class LostRanks {
 public:
  struct Hooks {
    /// Grows whenever a collective of a step has ended. Any thread.
    std::function<double()> progress;
    /// Of the rank that completed the checkpoint.
    std::function<void(const checkpoint::SaveReport&)> tell_saved;
    /// One line, of any rank.
    std::function<void(const std::string&)> warn;
    /// After a save: this rank ends by itself.
    std::function<void()> exits;
  };
  static constexpr std::chrono::seconds kStall{3};

  /// @param saver  outlives it
  LostRanks(checkpoint::EmergencySaver& saver, Hooks hooks);
  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  /// Saves and ends the process with status 75. Returns only if the ranks that are left cannot save: with a warning that says
  /// why. Any thread. @param why  "rank 3 is lost"  @param linger  after a save it ends this much later, or at SIGTERM
  void save_and_exit(const std::string& why, std::chrono::duration<double> linger = {});

  /// While it lives SIGTERM alone does not make this rank save: it is in a save or another long call without collectives of a step.
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
  void watch(const std::stop_token& stop);

  checkpoint::EmergencySaver& saver_;
  Hooks hooks_;
  std::atomic<int> num_pauses_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace mica::train
