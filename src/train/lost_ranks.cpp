// SPDX-License-Identifier: Apache-2.0
#include "mica/train/lost_ranks.hpp"

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/train/stop_signal.hpp"

namespace mica::train {
namespace {

constexpr std::chrono::milliseconds kPoll{100};

}  // namespace

LostRanks::LostRanks(checkpoint::EmergencySaver& saver, Hooks hooks)
    : saver_(saver), hooks_(std::move(hooks)), thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void LostRanks::save_and_exit(const std::string& why, std::chrono::duration<double> linger) {
  StopSignal::set_on_sigterm(StopSignal::OnSigterm::does_nothing);  // a second one must not interrupt the save
  try {
    const checkpoint::SaveReport report = saver_.save();
    if (report.bytes > 0) tell_saved(report);
    hooks_.warn(fmt::format("{}: the remaining ranks saved step {} in {}; {}", why, report.step, report.path, hooks_.how_to_go_on));
  } catch (const std::exception& error) {
    hooks_.warn(fmt::format("{}: the remaining ranks cannot save: {}", why, error.what()));
    StopSignal::set_on_sigterm(StopSignal::OnSigterm::stops);
    return;
  }
  hooks_.exits();
  StopSignal::set_on_sigterm(StopSignal::OnSigterm::ends_with_requeue);
  std::this_thread::sleep_for(linger);
  std::_Exit(static_cast<int>(ExitCode::requeue));  // no MPI call would return, nor a destructor that makes one
}

void LostRanks::tell_saved(const checkpoint::SaveReport& report) const {
  try {
    hooks_.tell_saved(report);
  } catch (const std::exception& error) {  // the checkpoint is there all the same
    hooks_.warn(error.what());
  }
}

void LostRanks::watch(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::condition_variable_any stopped;
  Clock::time_point since = Clock::now();
  for (std::unique_lock lock(mutex); !stopped.wait_for(lock, stop, kPoll, [&] { return stop.stop_requested(); });) {
    if (StopSignal::received() != SIGTERM || num_pauses_ > 0) since = Clock::now();
    if (Clock::now() - since < kStall || hooks_.waits() < kStall) continue;
    save_and_exit("SIGTERM, and no collective completes");
    since = Clock::now();
  }
}

}  // namespace mica::train
