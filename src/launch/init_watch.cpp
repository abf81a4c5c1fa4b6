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
#include <utility>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/launch/slurm_hosts.hpp"

#include "node_line.hpp"

namespace mica::launch {
namespace {

/// MPI_Init of a large job takes seconds, and slurmd logs each look at it as an error: one rank of a node looks.
constexpr std::chrono::milliseconds kFirstLook{2500}, kSecondLook{10'000};

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

[[noreturn]] void end_process() { ::_exit(static_cast<int>(ExitCode::runtime_failure)); }

/// Ends the process if a host of the step is lost. @returns whether all is well
bool look(const std::string& hosts_of_step, const std::stop_token& stop, const NodeLine& line, bool warns) {
  const UnreachableHost host = unreachable_slurm_host(hosts_of_step);
  if (host.pair.empty() || stop.stop_requested()) return true;
  if (host.is_silent) {
    std::fprintf(stderr,
                 "mica: error: %s: MPI does not start; open the network between these hosts, or leave one of them out (srun --exclude); "
                 "MICA_INIT_WATCH=off in the environment leaves this check out\n",
                 host.pair.c_str());
    line.tell_end();
    end_process();
  }
  if (!warns) return false;
  std::fprintf(stderr,
               "mica: warning: %s: MPI_Init takes long; if it does not end, open the network between these hosts, or leave one of them out "
               "(srun --exclude)\n",
               host.pair.c_str());
  return false;
}

/// @param warns  whether this rank tells what may be harmless: one of all ranks does
void watch_as_first(const std::stop_token& stop, const std::string& hosts_of_step, NodeLine line, bool warns) {
  line.open();
  for (const auto pause : {kFirstLook, kSecondLook - kFirstLook}) {
    if (is_stopped_within(stop, pause) || !look(hosts_of_step, stop, line, warns)) return;
  }
}

/// srun need not end the others when one rank ends. All of them looking at once would be a flood that a healthy host may not answer.
void watch_as_other(const std::stop_token& stop, const std::string& hosts_of_step, const NodeLine& line) {
  switch (line.listen(stop, kSecondLook)) {
    case NodeLine::Heard::end:
      if (!stop.stop_requested()) end_process();
      return;
    case NodeLine::Heard::closed:
      return;
    case NodeLine::Heard::nobody:
      if (!stop.stop_requested()) look(hosts_of_step, stop, line, /*warns=*/false);
      return;
  }
}

}  // namespace

std::jthread watch_init() {
  // The environment is read here, since MPI_Init may write to it.
  const char* hosts_of_step = std::getenv("SLURM_STEP_NODELIST");
  const char* choice = std::getenv("MICA_INIT_WATCH");
  if (hosts_of_step == nullptr || (choice != nullptr && std::string_view(choice) == "off")) return {};
  try {
    return std::jthread([hosts = std::string(hosts_of_step), is_first = is_first_of_node(), warns = is_zero(std::getenv("SLURM_PROCID")),
                         line = NodeLine()](const std::stop_token& stop) mutable {
      try {
        is_first ? watch_as_first(stop, hosts, std::move(line), warns) : watch_as_other(stop, hosts, line);
      } catch (const std::exception&) {  // out of memory, perhaps: MPI_Init goes on without a watch
      }
    });
  } catch (const std::system_error&) {  // no thread may be started (ulimit -u): the same
    return {};
  }
}

}  // namespace mica::launch
