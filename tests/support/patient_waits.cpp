// SPDX-License-Identifier: Apache-2.0
// What MPI calls while it waits, for the whole test program: sleeps. Open MPI calls sched_yield(); Linux takes the time slice from a
// process that yields, so beside other processes each message would come milliseconds late, while a process that sleeps gets its core back
// as soon as it wakes (docs/performance.md has figures, and says why Mica's own programs yield). MPICH over UCX, as Debian's, polls and
// never yields: a rank that waits would keep its core from those that it waits for until its time slice ends.
#include <algorithm>
#include <chrono>
#include <thread>

#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>

using namespace std::chrono_literals;

namespace {

/// Sleeps for 10 us, and in a row of calls for twice as long each time, up to 100 us: ranks that wait for long leave their cores to others.
void sleep_longer() {
  // Without this, Linux lets a sleep end 50 us late.
  [[maybe_unused]] thread_local const int is_punctual = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  thread_local std::chrono::steady_clock::time_point woke;
  thread_local std::chrono::microseconds sleep = 10us;
  const bool is_in_a_row = std::chrono::steady_clock::now() - woke < 20us;
  sleep = is_in_a_row ? std::min<std::chrono::microseconds>(2 * sleep, 100us) : 10us;
  std::this_thread::sleep_for(sleep);
  woke = std::chrono::steady_clock::now();
}

}  // namespace

extern "C" int sched_yield() noexcept {
  sleep_longer();
  return 0;
}

/// UCX's: handles what has arrived. @returns how much that was
extern "C" unsigned ucp_worker_progress(void* worker) {
  constexpr int kPolls = 50;
  static const auto progress = reinterpret_cast<unsigned (*)(void*)>(dlsym(RTLD_NEXT, "ucp_worker_progress"));
  thread_local int num_idle = 0;
  const unsigned num_handled = progress(worker);
  num_idle = num_handled == 0 ? std::min(num_idle + 1, kPolls) : 0;
  if (num_idle == kPolls) sleep_longer();
  return num_handled;
}
