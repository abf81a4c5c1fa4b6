// SPDX-License-Identifier: Apache-2.0
#include "mica/train/stop_signal.hpp"

#include <array>
#include <csignal>

namespace mica::train {
namespace {

volatile std::sig_atomic_t g_received = 0;  // a handler can reach nothing else
constexpr std::array<int, 3> kSignals{SIGTERM, SIGINT, SIGUSR1};

void note(int signal) {
  if (g_received != 0 && signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  g_received = signal;
}

}  // namespace

StopSignal::StopSignal() {
  g_received = 0;
  for (const int signal : kSignals) std::signal(signal, note);
}

StopSignal::~StopSignal() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

int StopSignal::received() { return g_received; }

}  // namespace mica::train
