// SPDX-License-Identifier: Apache-2.0
// How much CPU time the cgroups of a process allow, read from made-up /proc and /sys, and how many threads of a rank that is.
#include "mica/train/cpu_quota.hpp"

#include <climits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/train/cgroup_files.hpp"

namespace mica::train {
namespace {

using ::testing::ElementsAre;

class CpuQuotas : public CgroupFiles {
 protected:
  [[nodiscard]] std::vector<double> cpus() const {
    std::vector<double> all;
    for (const CpuQuota& each : cpu_quotas(folder_.path())) all.push_back(each.cpus);
    return all;
  }
};

TEST_F(CpuQuotas, NestedGroupsOfVersion2) {
  write("/proc/self/mountinfo", kV2Mounts);
  write("/proc/self/cgroup", "0::/kubepods/pod_7/box\n");
  write("/sys/fs/cgroup/kubepods/pod_7/box/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/kubepods/pod_7/cpu.max", "250000 100000\n");
  write("/sys/fs/cgroup/kubepods/cpu.max", "3000000 50000\n");
  write("/sys/fs/cgroup/kubepods/pod_8/cpu.max", "1000 100000\n");  // another pod's
  EXPECT_THAT(cpus(), ElementsAre(2.5, 60.0));
}

TEST_F(CpuQuotas, NestedGroupsOfVersion1) {
  write("/proc/self/mountinfo", kV1Mounts);
  write("/proc/self/cgroup", "9:cpu,cpuacct:/docker/abc\n4:memory:/elsewhere\n0::/\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "400000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_THAT(cpus(), ElementsAre(4.0));
}

TEST_F(CpuQuotas, InsideAContainer) {
  write("/proc/self/mountinfo", kV2Mounts);
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_THAT(cpus(), ElementsAre(4.0));
}

TEST_F(CpuQuotas, NoCgroups) { EXPECT_THAT(cpus(), ElementsAre()); }

TEST(ThreadsOfQuotas, TheTightestCountsAndRanksThatShareItDivideIt) {
  const CpuQuota box{2, "box"}, pod{6, "pod"};
  EXPECT_EQ(threads_of_quotas({}, {{}}), INT_MAX);
  EXPECT_EQ(threads_of_quotas({box, pod}, {{"box", "pod"}}), 2);
  EXPECT_EQ(threads_of_quotas({box, pod}, {{"box", "pod"}, {"other", "pod"}}), 2) << "only the pod is shared";
  EXPECT_EQ(threads_of_quotas({box, pod}, {{"box", "pod"}, {"b", "pod"}, {"c", "pod"}, {"d", "pod"}}), 1) << "one and a half";
  EXPECT_EQ(threads_of_quotas({box}, {{"box"}, {"box"}, {"box"}}), 1) << "never none";
  EXPECT_EQ(threads_of_quotas({{2.5, "box"}}, {{"box"}, {}}), 2) << "a thread more would be stopped half of the time";
}

}  // namespace
}  // namespace mica::train
