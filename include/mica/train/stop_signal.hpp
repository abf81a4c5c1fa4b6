// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace mica::train {

/// Takes SIGTERM, SIGINT and SIGUSR1 for "save and stop" while it lives: from a batch system or a user. One object at a time;
/// from before MPI starts until it has ended, so that no signal kills a run that starts or ends. A second signal kills as usual.
/// Signals within kOneRequest of the first are the same request: launchers tell a process, and its group as well.
class StopSignal {
 public:
  static constexpr std::chrono::milliseconds kOneRequest{1000};

  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal's number, 0 for none.
  [[nodiscard]] static int received();
};

/// "SIGTERM", of those that it takes.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace mica::train
