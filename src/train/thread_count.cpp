// SPDX-License-Identifier: Apache-2.0
#include "mica/train/thread_count.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <fmt/ranges.h>
#include <sched.h>

namespace mica::train {
namespace {

Cores own_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {0};
  Cores cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
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

bool share_a_core(const Cores& a, const Cores& b) {
  return std::ranges::any_of(a, [&](int core) { return std::ranges::binary_search(b, core); });
}

}  // namespace

int threads_of_rank(const std::vector<Cores>& ranks_on_node, int rank) {
  const Cores& mine = ranks_on_node[static_cast<std::size_t>(rank)];
  const auto sharers = std::ranges::count_if(ranks_on_node, [&](const Cores& cores) { return share_a_core(mine, cores); });
  return std::max(1, static_cast<int>(std::ssize(mine) / std::max<std::ptrdiff_t>(1, sharers)));
}

ThreadCount choose_threads(const mpi::Communicator& world, int wanted) {
  const mpi::Communicator node = world.split_node();
  const Cores mine = own_cores();
  const std::vector<Cores> ranks = gather_cores(node, mine);
  const char* variable = std::getenv("OMP_NUM_THREADS");
  ThreadCount count;
  if (wanted > 0) {
    count.threads = wanted;
  } else {
    count.threads = variable != nullptr ? std::max(1, std::atoi(variable)) : threads_of_rank(ranks, node.rank());
  }
  const bool is_over = count.threads > std::ssize(mine);
  const std::vector<std::string> all = world.gather_strings(
      is_over ? fmt::format(
                    "rank {} has {} threads ({}) on {} core{}: they take turns, which is slow; lower it or bind ranks to more cores",
                    world.rank(), count.threads, wanted > 0 ? "mesh.threads" : "OMP_NUM_THREADS", mine.size(), mine.size() == 1 ? "" : "s")
              : "");
  const auto first = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (world.rank() == 0 && first != all.end()) count.warning = *first;
  return count;
}

}  // namespace mica::train
