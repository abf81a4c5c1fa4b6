// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace mica::train {

/// While it exists, SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 from a batch system or a user mean "save and stop", and so does SIGHUP from a
/// terminal that is gone, unless it is ignored (nohup). One object at a time. It lives from before MPI starts until after MPI has ended,
/// and signals stay blocked after it, so that none kills a run while it starts or ends. A second signal kills as usual.
/// Signals within kOneRequest of the first count as the same request, since launchers signal a process and then its process group.
///
/// A thread of its own takes the signals. They are blocked on the thread that makes the object, and on all that it starts from then on:
/// oneDNN's products for AVX2 (2.6) let the stack pointer point into their buffers, and a handler that interrupts one overwrites what
/// lies below it on the heap.
class StopSignal {
 public:
  static constexpr std::chrono::milliseconds kOneRequest{1000};
  /// What SIGTERM does; at first it stops the run.
  enum class OnSigterm : std::uint8_t {
    stops,  ///< as said above
    does_nothing,
    ends_with_requeue,  ///< the process, at once, with status 75
  };

  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal's number, 0 for none.
  [[nodiscard]] static int received();
  static void set_on_sigterm(OnSigterm what);

 private:
  void take_signals(const std::stop_token& stop);

  std::jthread thread_;
};

/// "SIGTERM"; for the signals above.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace mica::train
