// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace mica::train {

/// While it exists, SIGTERM, SIGINT and SIGUSR1 from a batch system or a user mean "save and stop". One object at a time. It lives from
/// before MPI starts until after MPI has ended, so that no signal kills a run while it starts or ends. A second signal kills as usual.
/// Signals within kOneRequest of the first count as the same request, since launchers signal a process and then its process group.
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

/// "SIGTERM"; for the three signals above.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace mica::train
