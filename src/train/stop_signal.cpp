// SPDX-License-Identifier: Apache-2.0
#include "mica/train/stop_signal.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace mica::train {
namespace {

constexpr std::array<int, 3> kSignals{SIGTERM, SIGINT, SIGUSR1};

// Global, since a signal handler has no argument for state. It may run on any thread.
std::atomic<int> g_received{0};
std::atomic<std::int64_t> g_received_ms{0};
static_assert(decltype(g_received)::is_always_lock_free && decltype(g_received_ms)::is_always_lock_free);

void note(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ms = std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
  int none = 0;
  if (g_received.compare_exchange_strong(none, signal)) {
    g_received_ms = now_ms;
  } else if (now_ms - g_received_ms >= StopSignal::kOneRequest.count()) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
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

std::string signal_name(int signal) { return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGUSR1"; }

}  // namespace mica::train
