// SPDX-License-Identifier: Apache-2.0
#include "mica/train/memory_limit.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "cgroup.hpp"

namespace mica::train {
namespace {

/// "needed\nid\nid..."
std::string encode(std::int64_t needed, const std::vector<MemoryLimit>& limits) {
  std::string text = std::to_string(needed);
  for (const MemoryLimit& limit : limits) text += "\n" + limit.id;
  return text;
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  const std::int64_t present = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  std::vector<MemoryLimit> limits{{present, "the node's memory", "node"}};
  for (const Cgroup& cgroup : own_cgroups("memory", root)) {
    const std::string file = cgroup.is_v2 ? "memory.max" : "memory.limit_in_bytes";
    // No number ("max"), or no file (the root of version 2): no limit.
    std::int64_t bytes = 0;
    const std::string name = fmt::format("{} of the cgroup {}", file, cgroup.name);
    if (std::ifstream(cgroup.folder + "/" + file) >> bytes) limits.push_back({bytes, name, cgroup.space + name});
  }
  return limits;
}

MemoryShare tightest_limit(const mpi::Communicator& node, std::int64_t needed, const std::vector<MemoryLimit>& limits) {
  std::vector<MemoryShare> shares;
  for (const MemoryLimit& limit : limits) shares.push_back({limit});
  for (const std::string& text : node.gather_strings(encode(needed, limits))) {
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    const std::int64_t theirs = std::stoll(line);
    while (std::getline(lines, line)) {
      const auto share = std::ranges::find(shares, line, [](const MemoryShare& s) { return s.limit.id; });
      if (share == shares.end()) continue;
      share->needed += theirs;
      share->num_ranks += 1;
    }
  }
  return *std::ranges::min_element(shares, {}, [](const MemoryShare& s) { return s.limit.bytes - s.needed; });
}

}  // namespace mica::train
