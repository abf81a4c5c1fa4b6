// SPDX-License-Identifier: Apache-2.0
#include "mica/train/stop_signal.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "mica/core/error.hpp"
#include "mica/core/steady_ns.hpp"

namespace mica::train {
namespace {

// Global: received() is asked where the object is not known.
std::atomic<int> g_received{0};
std::atomic<std::int64_t> g_received_ms{0};
std::atomic<StopSignal::OnSigterm> g_on_sigterm{StopSignal::OnSigterm::stops};

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};

/// SIGHUP under nohup. Other signals are handled even if they were ignored: a shell ignores SIGINT for what it starts in the background.
bool is_left_ignored(int signal) {
  struct sigaction now {};
  return signal == SIGHUP && ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

sigset_t set_of(std::span<const int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  return set;
}

[[noreturn]] void end_as_usual(int signal) {
  std::signal(signal, SIG_DFL);
  const sigset_t it = set_of(std::array{signal});
  ::pthread_sigmask(SIG_UNBLOCK, &it, nullptr);
  std::raise(signal);
  std::abort();
}

void note(int signal) {
  if (signal == SIGTERM && g_on_sigterm == StopSignal::OnSigterm::does_nothing) return;
  if (signal == SIGTERM && g_on_sigterm == StopSignal::OnSigterm::ends_with_requeue) std::_Exit(static_cast<int>(ExitCode::requeue));
  const std::int64_t now_ms = steady_ns() / 1'000'000;
  int none = 0;
  if (g_received.compare_exchange_strong(none, signal)) {
    g_received_ms = now_ms;
  } else if (now_ms - g_received_ms >= StopSignal::kOneRequest.count()) {
    end_as_usual(signal);
  }
}

}  // namespace

StopSignal::StopSignal() {
  g_received = 0;
  g_on_sigterm = OnSigterm::stops;
  for (const int signal : kSignals) {
    if (!is_left_ignored(signal)) std::signal(signal, note);  // of threads that were there before
  }
  const sigset_t all = set_of(kSignals);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  thread_ = std::jthread([this](const std::stop_token& stop) { take_signals(stop); });
}

StopSignal::~StopSignal() {
  thread_.request_stop();
  ::pthread_kill(thread_.native_handle(), SIGUSR1);  // wakes it
  thread_.join();
  for (const int signal : kSignals) {
    if (!is_left_ignored(signal)) std::signal(signal, SIG_DFL);
  }
}

void StopSignal::take_signals(const std::stop_token& stop) {
  const sigset_t all = set_of(kSignals);
  for (;;) {
    int signal = 0;
    if (::sigwait(&all, &signal) != 0) continue;
    if (stop.stop_requested()) return;
    if (!is_left_ignored(signal)) note(signal);
  }
}

void StopSignal::set_on_sigterm(OnSigterm what) { g_on_sigterm = what; }

int StopSignal::received() { return g_received; }

std::string signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "SIGUSR2";
  }
}

}  // namespace mica::train
