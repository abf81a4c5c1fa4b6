// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mica::train {

/// Records SIGTERM, SIGINT and SIGUSR1 while it lives: "save and stop" from a batch system or a user. One object at a time. A
/// second SIGINT kills as usual.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal's number, 0 for none.
  [[nodiscard]] static int received();
};

}  // namespace mica::train
