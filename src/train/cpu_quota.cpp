// SPDX-License-Identifier: Apache-2.0
#include "mica/train/cpu_quota.hpp"

#include <algorithm>
#include <fstream>
#include <limits>

#include "cgroup.hpp"

namespace mica::train {
namespace {

/// Numbers of microseconds. 0 if there is none: "max" or "-1", or no file, as in the root of version 2.
double cpus_of(const Cgroup& cgroup) {
  double quota = 0, period = 0;
  if (cgroup.is_v2) {
    std::ifstream(cgroup.folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(cgroup.folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(cgroup.folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

std::vector<CpuQuota> cpu_quotas(const std::string& root) {
  std::vector<CpuQuota> quotas;
  for (const Cgroup& cgroup : own_cgroups("cpu", root)) {
    const double cpus = cpus_of(cgroup);
    if (cpus > 0) quotas.push_back({cpus, cgroup.space + (cgroup.is_v2 ? "2:" : "1:") + cgroup.name});
  }
  return quotas;
}

int threads_of_quotas(const std::vector<CpuQuota>& mine, const std::vector<std::vector<std::string>>& ids_on_node) {
  double threads = std::numeric_limits<int>::max();
  for (const CpuQuota& quota : mine) {
    const auto sharers = std::ranges::count_if(ids_on_node, [&](const auto& ids) { return std::ranges::count(ids, quota.id) > 0; });
    threads = std::min(threads, quota.cpus / static_cast<double>(sharers));
  }
  return std::max(1, static_cast<int>(threads));
}

}  // namespace mica::train
