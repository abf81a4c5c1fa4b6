// SPDX-License-Identifier: Apache-2.0
// sched_yield(), which Open MPI calls while it waits, for the whole test program: sleeps for 10 us instead. Linux takes the time slice from
// a process that yields, so beside other processes each message would come milliseconds late; a process that sleeps gets its core back as
// soon as it wakes (docs/performance.md has figures, and says why Mica's own programs yield).
#include <chrono>
#include <thread>

#include <sched.h>
#include <sys/prctl.h>

extern "C" int sched_yield() noexcept {
  // Without this, Linux lets a sleep end 50 us late.
  [[maybe_unused]] thread_local const int is_punctual = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  std::this_thread::sleep_for(std::chrono::microseconds(10));
  return 0;
}
