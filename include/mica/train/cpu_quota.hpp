// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace mica::train {

/// A limit on the CPU time that processes may take together.
struct CpuQuota {
  double cpus = 0;  ///< 2.5: as much time as two and a half CPUs have
  std::string id;   ///< the same for all processes of the node that share it, and for no others
};

/// The quotas of this process's cgroups (a container's --cpus, a limit in Kubernetes), from the innermost to the root; cgroup versions
/// 1 and 2. @param root  prefix of /proc and of the mounts, for tests.
[[nodiscard]] std::vector<CpuQuota> cpu_quotas(const std::string& root = "");

/// The threads of a rank that its quotas allow: each is divided by the number of the node's ranks that share it. At least 1; without
/// quotas no limit: INT_MAX.
/// @param ids_on_node  of the quotas of each of the node's ranks, this one among them
[[nodiscard]] int threads_of_quotas(const std::vector<CpuQuota>& mine, const std::vector<std::vector<std::string>>& ids_on_node);

}  // namespace mica::train
