// SPDX-License-Identifier: Apache-2.0
#include "mica/train/memory_limit.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

namespace mica::train {
namespace {

/// A mounted cgroup hierarchy that may limit memory.
struct CgroupMount {
  bool is_v2 = false;
  std::string root;   ///< the cgroup at the mount point: "/" or, in some containers, the container's
  std::string point;  ///< "/sys/fs/cgroup/memory"
};

/// /proc/self/mountinfo: "31 23 0:28 ROOT POINT rw,relatime - TYPE SOURCE OPTIONS".
std::vector<CgroupMount> cgroup_mounts(const std::string& root) {
  std::vector<CgroupMount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, type, source, options;
    CgroupMount mount;
    words >> word >> word >> word >> mount.root >> mount.point;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    mount.is_v2 = type == "cgroup2";
    const bool has_memory = fmt::format(",{},", options).find(",memory,") != std::string::npos;
    if (mount.is_v2 || (type == "cgroup" && has_memory)) mounts.push_back(mount);
  }
  return mounts;
}

/// The path of this process's cgroup. /proc/self/cgroup: "0::PATH" for version 2, "4:cpu,memory:PATH" for version 1.
std::string own_cgroup(const std::string& root, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (is_v2 ? controllers == ",," : controllers.find(",memory,") != std::string::npos) return line.substr(second + 1);
  }
  return "/";
}

/// The cgroup's path below the mount point; "" for the cgroup at the mount point, and for a process outside what is mounted.
std::string path_below(const std::string& cgroup, const std::string& mount_root) {
  const std::string prefix = mount_root == "/" ? "" : mount_root;
  const bool is_inside = cgroup.starts_with(prefix + "/") && cgroup.find("/..") == std::string::npos;
  return is_inside && cgroup != "/" ? cgroup.substr(prefix.size()) : "";
}

/// Different cgroups may have the same name in different containers: "cgroup:[4026531835]".
std::string cgroup_namespace(const std::string& root) {
  std::error_code error;
  return std::filesystem::read_symlink(root + "/proc/self/ns/cgroup", error).string();
}

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
  for (const CgroupMount& mount : cgroup_mounts(root)) {
    const std::string file = mount.is_v2 ? "memory.max" : "memory.limit_in_bytes";
    std::string path = path_below(own_cgroup(root, mount.is_v2), mount.root);
    while (true) {
      const std::string shown = path.empty() ? mount.root : path;
      // No number ("max"), or no file (the root of version 2): no limit.
      std::int64_t bytes = 0;
      const std::string name = fmt::format("{} of the cgroup {}", file, shown);
      if (std::ifstream(root + mount.point + path + "/" + file) >> bytes) limits.push_back({bytes, name, cgroup_namespace(root) + name});
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
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
