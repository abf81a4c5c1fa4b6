// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace mica::test {

/// Bytes that this process has read from files so far, as the system counts them.
inline std::int64_t bytes_read_by_process() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::int64_t bytes = 0;
  file >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

}  // namespace mica::test
