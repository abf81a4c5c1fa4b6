// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/init_watch.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/launch/slurm_hosts.hpp"

namespace mica::launch {

std::jthread watch_init() {
  const char* hosts_of_step = std::getenv("SLURM_STEP_NODELIST");  // read here, since MPI_Init may write to the environment
  if (hosts_of_step == nullptr) return {};
  return std::jthread([hosts = std::string(hosts_of_step)](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    if (stopped.wait_for(lock, stop, std::chrono::milliseconds(2500), [] { return false; }) || stop.stop_requested()) return;
    const std::string pair = unreachable_slurm_host(hosts);
    if (pair.empty() || stop.stop_requested()) return;
    std::fprintf(stderr,
                 "mica: error: %s: MPI does not start; open the network between these hosts, or leave one of them out (srun --exclude)\n",
                 pair.c_str());
    ::_exit(static_cast<int>(ExitCode::user_mistake));
  });
}

}  // namespace mica::launch
