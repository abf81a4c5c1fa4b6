// SPDX-License-Identifier: Apache-2.0
#include "mica/train/thread_count.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include <fmt/ranges.h>
#include <sched.h>

#include "mica/core/host.hpp"
#include "mica/train/cpu_quota.hpp"

namespace mica::train {
namespace {

/// The kernel refuses to fill a mask that is shorter than its own, and one cpu_set_t ends at 1024 CPUs. This is twice as many as Linux can
/// be built for.
using CoreMask = std::array<cpu_set_t, 16>;

Cores own_cores() {
  CoreMask mask{};
  if (sched_getaffinity(0, sizeof mask, mask.data()) != 0) return {0};
  Cores cores;
  for (int core = 0; core < static_cast<int>(mask.size()) * CPU_SETSIZE; ++core) {
    if (CPU_ISSET_S(core, sizeof mask, mask.data())) cores.push_back(core);
  }
  return cores;
}

/// The cores that this process could be bound to: those of the node, or of the job's cpuset.
Cores possible_cores() {
  Cores cores;
  std::thread([&] {  // the mask applies to this thread only
    CoreMask all;
    std::fill_n(reinterpret_cast<unsigned char*>(&all), sizeof all, static_cast<unsigned char>(0xff));
    static_cast<void>(sched_setaffinity(0, sizeof all, all.data()));
    cores = own_cores();
  })
      .join();
  return cores;
}

std::vector<Cores> gather_cores(const mpi::Communicator& node, const Cores& mine) {
  std::vector<Cores> all;
  for (const std::string& text : node.gather_strings(fmt::format("{}", fmt::join(mine, " ")))) {
    Cores& cores = all.emplace_back();
    std::istringstream numbers(text);
    for (int core = 0; numbers >> core;) cores.push_back(core);
  }
  return all;
}

/// @collective
int quota_threads(const mpi::Communicator& node) {
  const std::vector<CpuQuota> mine = cpu_quotas();
  std::vector<std::string> ids;
  for (const CpuQuota& quota : mine) ids.push_back(quota.id);
  std::vector<std::vector<std::string>> all;
  for (const std::string& text : node.gather_strings(fmt::format("{}", fmt::join(ids, "\n")))) {
    std::vector<std::string>& theirs = all.emplace_back();
    std::istringstream lines(text);
    for (std::string id; std::getline(lines, id);) theirs.push_back(id);
  }
  return threads_of_quotas(mine, all);
}

bool share_a_core(const Cores& a, const Cores& b) {
  return std::ranges::any_of(a, [&](int core) { return std::ranges::binary_search(b, core); });
}

}  // namespace

int threads_of_rank(const std::vector<Cores>& ranks_on_node, int rank) {
  const Cores& mine = ranks_on_node[static_cast<std::size_t>(rank)];
  const auto sharers = std::ranges::count_if(ranks_on_node, [&](const Cores& cores) { return share_a_core(mine, cores); });
  return std::max(1, static_cast<int>(std::ssize(mine) / std::max<std::ptrdiff_t>(1, sharers)));
}

std::string crowding_of(const std::string& host, const std::vector<Cores>& ranks, const std::vector<int>& threads,
                        std::int64_t num_possible) {
  std::set<int> used;
  for (const Cores& each : ranks) used.insert(each.begin(), each.end());
  const auto num_used = std::ssize(used);
  const std::int64_t num_threads = std::reduce(threads.begin(), threads.end(), 0);
  if (ranks.size() < 2 || num_threads <= num_used) return {};
  const std::string seen = fmt::format("the {} ranks of {} have {} threads in all", ranks.size(), host, num_threads);
  if (num_used < num_possible) {
    return fmt::format(
        "{}, but are bound to {} of its {} cores ({}): the threads take turns there while other cores are idle; bind each rank to its own "
        "(mpirun --map-by slot:PE=THREADS --bind-to core, srun --cpus-per-task=THREADS), or none (--bind-to none)",
        seen, num_used, num_possible, fmt::join(used, ", "));
  }
  return fmt::format(
      "{} on {} core{}: the threads take turns, which is slow; start fewer ranks per node, or ask for more "
      "cores",
      seen, num_used, num_used == 1 ? "" : "s");
}

ThreadCount choose_threads(const mpi::Communicator& world, int wanted) {
  const mpi::Communicator node = world.split_node();
  const Cores mine = own_cores();
  const std::vector<Cores> ranks = gather_cores(node, mine);
  const int most = quota_threads(node);
  const char* variable = std::getenv("OMP_NUM_THREADS");
  const int asked = wanted > 0 ? wanted : variable != nullptr ? std::atoi(variable) : 0;
  ThreadCount count{.threads = asked > 0 ? asked : std::min(most, threads_of_rank(ranks, node.rank())), .warning = {}};
  std::vector<int> threads;
  for (const std::string& text : node.gather_strings(std::to_string(count.threads))) threads.push_back(std::stoi(text));
  std::string warning;
  if (count.threads > std::ssize(mine)) {
    warning =
        fmt::format("rank {} has {} threads ({}) on {} core{}: the threads take turns, which is slow; lower it or bind ranks to more cores",
                    world.rank(), count.threads, wanted > 0 ? "mesh.threads" : "OMP_NUM_THREADS", mine.size(), mine.size() == 1 ? "" : "s");
  } else if (node.rank() == 0) {
    warning = crowding_of(host_name(), ranks, threads, std::ssize(possible_cores()));
    for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES"}) {
      if (warning.empty() || std::getenv(name) == nullptr) continue;
      warning += fmt::format("; {} is set, so OpenMP itself binds ranks that the launcher has not bound, all to the same cores", name);
      break;
    }
  }
  const std::vector<std::string> all = world.gather_strings(warning);
  const auto first = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (world.rank() == 0 && first != all.end()) count.warning = *first;
  return count;
}

}  // namespace mica::train
