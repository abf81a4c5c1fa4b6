// SPDX-License-Identifier: Apache-2.0
// The limits of cgroups, read from made-up /proc and /sys: nested groups, versions 1 and 2, containers.
#include "mica/train/memory_limit.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "unit/train/cgroup_files.hpp"

namespace mica::train {
namespace {

using ::testing::ElementsAre;

class MemoryLimits : public CgroupFiles {
 protected:
  /// Without the node's memory, which is always the first.
  [[nodiscard]] std::vector<std::string> limits() const {
    std::vector<std::string> texts;
    const std::vector<MemoryLimit> all = memory_limits(folder_.path());
    EXPECT_EQ(all.at(0).name, "the node's memory");
    EXPECT_EQ(all.at(0).bytes, static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE));
    for (std::size_t i = 1; i < all.size(); ++i) texts.push_back(std::to_string(all[i].bytes) + " " + all[i].name);
    return texts;
  }
};

TEST_F(MemoryLimits, NestedGroupsOfVersion2) {
  write("/proc/self/mountinfo", fmt::format("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{}", kV2Mounts));
  write("/proc/self/cgroup", "0::/slurm/job_7/step_0/task_1\n");
  write("/sys/fs/cgroup/slurm/job_7/step_0/task_1/memory.max", "max\n");
  write("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "2000\n");
  write("/sys/fs/cgroup/slurm/job_7/memory.max", "1000\n");
  write("/sys/fs/cgroup/slurm/memory.max", "max\n");
  write("/sys/fs/cgroup/slurm/job_8/memory.max", "5\n");  // another job's
  EXPECT_THAT(limits(), ElementsAre("2000 memory.max of the cgroup /slurm/job_7/step_0", "1000 memory.max of the cgroup /slurm/job_7"));
}

TEST_F(MemoryLimits, NestedGroupsOfVersion1) {
  write("/proc/self/mountinfo", kV1Mounts);
  write("/proc/self/cgroup", "9:cpu,cpuacct:/elsewhere\n4:memory:/slurm/uid_0/job_7\n0::/\n");
  write("/sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "3000\n");
  write("/sys/fs/cgroup/memory/slurm/uid_0/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/elsewhere/memory.limit_in_bytes", "5\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4000\n");
  EXPECT_THAT(limits(), ElementsAre("3000 memory.limit_in_bytes of the cgroup /slurm/uid_0/job_7",
                                    "9223372036854771712 memory.limit_in_bytes of the cgroup /slurm/uid_0",
                                    "4000 memory.limit_in_bytes of the cgroup /"));
}

TEST_F(MemoryLimits, BothVersionsAtOnce) {
  write("/proc/self/mountinfo", fmt::format("{}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", kV1Mounts));
  write("/proc/self/cgroup", "4:memory:/a\n0::/b\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "10\n");
  write("/sys/fs/cgroup/unified/b/memory.max", "20\n");
  EXPECT_THAT(limits(), ElementsAre("10 memory.limit_in_bytes of the cgroup /a", "20 memory.max of the cgroup /b"));
}

// A container sees its own cgroup as the mount's root: by a name of the host (version 1), or as "/" (a cgroup namespace).
TEST_F(MemoryLimits, InsideAContainer) {
  write("/proc/self/mountinfo", "31 23 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("/proc/self/cgroup", "4:memory:/docker/abc\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "70\n");
  EXPECT_THAT(limits(), ElementsAre("70 memory.limit_in_bytes of the cgroup /docker/abc"));
  write("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
  write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "60\n");
  EXPECT_THAT(limits(), ElementsAre("60 memory.limit_in_bytes of the cgroup /inner", "70 memory.limit_in_bytes of the cgroup /docker/abc"));
  write("/proc/self/mountinfo", kV2Mounts);
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "80\n");
  EXPECT_THAT(limits(), ElementsAre("80 memory.max of the cgroup /"));
  write("/proc/self/cgroup", "0::/../outside\n");
  EXPECT_THAT(limits(), ElementsAre("80 memory.max of the cgroup /"));
}

TEST_F(MemoryLimits, NoCgroups) { EXPECT_THAT(limits(), ElementsAre()); }

}  // namespace
}  // namespace mica::train
