// SPDX-License-Identifier: Apache-2.0
// A folder with made-up files of /proc and /sys, and the mounts of both versions of cgroups.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::train {

inline constexpr const char* kV2Mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
inline constexpr const char* kV1Mounts =
    "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "31 23 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory\n";

class CgroupFiles : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  test::TemporaryFolder folder_;
};

}  // namespace mica::train
