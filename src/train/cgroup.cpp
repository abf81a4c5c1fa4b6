// SPDX-License-Identifier: Apache-2.0
#include "cgroup.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

namespace mica::train {
namespace {

/// A mounted cgroup hierarchy that may limit what the controller counts.
struct CgroupMount {
  bool is_v2 = false;
  std::string root;   ///< the cgroup at the mount point: "/" or, in some containers, the container's
  std::string point;  ///< "/sys/fs/cgroup/memory"
};

/// /proc/self/mountinfo: "31 23 0:28 ROOT POINT rw,relatime - TYPE SOURCE OPTIONS".
std::vector<CgroupMount> cgroup_mounts(const std::string& controller, const std::string& root) {
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
    const bool has_controller = fmt::format(",{},", options).find("," + controller + ",") != std::string::npos;
    if (mount.is_v2 || (type == "cgroup" && has_controller)) mounts.push_back(mount);
  }
  return mounts;
}

/// The path of this process's cgroup. /proc/self/cgroup: "0::PATH" for version 2, "4:cpu,memory:PATH" for version 1.
std::string own_cgroup(const std::string& controller, const std::string& root, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (is_v2 ? controllers == ",," : controllers.find("," + controller + ",") != std::string::npos) return line.substr(second + 1);
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

}  // namespace

std::vector<Cgroup> own_cgroups(const std::string& controller, const std::string& root) {
  std::vector<Cgroup> cgroups;
  for (const CgroupMount& mount : cgroup_mounts(controller, root)) {
    std::string path = path_below(own_cgroup(controller, root, mount.is_v2), mount.root);
    while (true) {
      cgroups.push_back({mount.is_v2, root + mount.point + path, path.empty() ? mount.root : path, cgroup_namespace(root)});
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return cgroups;
}

}  // namespace mica::train
