// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/init_watch.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/launch/slurm_hosts.hpp"

namespace mica::launch {
namespace {

/// MPI_Init of a large job takes seconds, and slurmd logs each look at it as an error: one rank of a node looks first.
constexpr std::chrono::milliseconds kLong{2500}, kLongForOthers{10'000};

bool is_zero(const char* number) { return number != nullptr && std::string_view(number) == "0"; }

/// Whether this rank speaks for those of its node. An mpirun's ranks all have the SLURM_LOCALID of its daemon.
bool is_first_of_node() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (rank == nullptr) rank = std::getenv("MPI_LOCALRANKID");
  if (rank == nullptr) rank = std::getenv("SLURM_LOCALID");
  return rank == nullptr || is_zero(rank);
}

bool is_stopped_within(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, time, [] { return false; });
  return stop.stop_requested();
}

/// Every rank looks for itself in the end, since srun need not end the others when one does.
/// @param warns  whether this rank tells what may be harmless: one of all ranks does
void look(const std::stop_token& stop, const std::string& hosts_of_step, bool is_first, bool warns) {
  if (is_stopped_within(stop, is_first ? kLong : kLongForOthers)) return;
  const UnreachableHost host = unreachable_slurm_host(hosts_of_step);
  if (host.pair.empty() || stop.stop_requested()) return;
  if (host.is_silent) {
    if (is_first) {
      std::fprintf(stderr,
                   "mica: error: %s: MPI does not start; open the network between these hosts, or leave one of them out (srun --exclude)\n",
                   host.pair.c_str());
    }
    ::_exit(static_cast<int>(ExitCode::user_mistake));
  }
  if (!warns) return;
  std::fprintf(stderr,
               "mica: warning: %s: MPI_Init takes long; if it does not end, open the network between these hosts, or leave one of them out "
               "(srun --exclude)\n",
               host.pair.c_str());
}

}  // namespace

std::jthread watch_init() {
  // The environment is read here, since MPI_Init may write to it.
  const char* hosts_of_step = std::getenv("SLURM_STEP_NODELIST");
  if (hosts_of_step == nullptr) return {};
  try {
    return std::jthread([hosts = std::string(hosts_of_step), is_first = is_first_of_node(),
                         warns = is_zero(std::getenv("SLURM_PROCID"))](const std::stop_token& stop) {
      try {
        look(stop, hosts, is_first, warns);
      } catch (const std::exception&) {  // out of memory, perhaps: MPI_Init goes on without a watch
      }
    });
  } catch (const std::system_error&) {  // no thread may be started (ulimit -u): the same
    return {};
  }
}

}  // namespace mica::launch
