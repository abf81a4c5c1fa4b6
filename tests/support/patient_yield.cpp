// SPDX-License-Identifier: Apache-2.0
// sched_yield(), which Open MPI calls while it waits, for the whole test program: sleeps instead. Linux takes the time slice from a
// process that yields, so beside other processes each message would come milliseconds late; a process that sleeps gets its core back as
// soon as it wakes (docs/performance.md has figures, and says why Mica's own programs yield).
#include <algorithm>
#include <chrono>
#include <thread>

#include <sched.h>
#include <sys/prctl.h>

using namespace std::chrono_literals;

/// Sleeps for 10 us, and in a row of calls for twice as long each time, up to 100 us: ranks that wait for long leave their cores to others.
extern "C" int sched_yield() noexcept {
  // Without this, Linux lets a sleep end 50 us late.
  [[maybe_unused]] thread_local const int is_punctual = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  thread_local std::chrono::steady_clock::time_point woke;
  thread_local std::chrono::microseconds sleep = 10us;
  const bool is_in_a_row = std::chrono::steady_clock::now() - woke < 20us;
  sleep = is_in_a_row ? std::min<std::chrono::microseconds>(2 * sleep, 100us) : 10us;
  std::this_thread::sleep_for(sleep);
  woke = std::chrono::steady_clock::now();
  return 0;
}
