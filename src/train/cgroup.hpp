// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace mica::train {

/// A cgroup of this process.
struct Cgroup {
  bool is_v2 = false;
  std::string folder;  ///< of its files: "/sys/fs/cgroup/slurm/job_7"
  std::string name;    ///< "/slurm/job_7"
  std::string space;   ///< its namespace: cgroups of the same name in different ones may be different. "cgroup:[4026531835]"
};

/// The cgroups that may set limits of a controller ("memory", "cpu") for this process, from the innermost to the root; cgroup versions
/// 1 and 2. @param root  prefix of /proc and of the mounts, for tests.
[[nodiscard]] std::vector<Cgroup> own_cgroups(const std::string& controller, const std::string& root);

}  // namespace mica::train
