// SPDX-License-Identifier: Apache-2.0
#include "mica/train/stop_signal.hpp"

#include <chrono>
#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

namespace mica::train {
namespace {

using namespace std::chrono_literals;

bool is_blocked_here(int signal) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return ::sigismember(&blocked, signal) == 1;
}

int received_soon() {
  for (const auto begin = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - begin < 30s;) {
    if (StopSignal::received() != 0) return StopSignal::received();
    std::this_thread::sleep_for(1ms);
  }
  return 0;
}

// What would be interrupted: this thread, and every one that it starts.
TEST(StopSignal, NoThreadThatComputesIsInterrupted) {
  const StopSignal stop;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_TRUE(is_blocked_here(signal)) << signal;
    std::thread([&] { EXPECT_TRUE(is_blocked_here(signal)) << signal; }).join();
  }
}

TEST(StopSignal, TheFirstSignalIsKept) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    std::signal(signal, signal == SIGHUP ? SIG_DFL : SIG_IGN);  // as under a shell that starts it in the background
    const StopSignal stop;
    EXPECT_EQ(StopSignal::received(), 0);
    ::kill(::getpid(), signal);
    EXPECT_EQ(received_soon(), signal);
    ::kill(::getpid(), signal == SIGTERM ? SIGINT : SIGTERM);  // the same request
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(StopSignal::received(), signal);
  }
}

TEST(StopSignal, NohupKeepsItsEffect) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignal stop;
    ::kill(::getpid(), SIGHUP);
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(StopSignal::received(), 0);
    ::kill(::getpid(), SIGINT);
    EXPECT_EQ(received_soon(), SIGINT);
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

TEST(StopSignalDeathTest, SigtermMayDoNothingOrEndTheProcess) {
  const auto terminate = [](StopSignal::OnSigterm what) {
    const StopSignal stop;
    StopSignal::set_on_sigterm(what);
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(200ms);
    std::_Exit(StopSignal::received() == 0 ? 0 : 1);
  };
  EXPECT_EXIT(terminate(StopSignal::OnSigterm::does_nothing), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(terminate(StopSignal::OnSigterm::ends_with_requeue), ::testing::ExitedWithCode(75), "");
}

}  // namespace
}  // namespace mica::train
