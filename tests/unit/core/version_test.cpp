// SPDX-License-Identifier: Apache-2.0
#include "mica/core/version.hpp"

#include <regex>
#include <string>

#include <gtest/gtest.h>

namespace mica {
namespace {

TEST(Version, IsCMakesWithTheCommit) {
  EXPECT_EQ(version(), "0.2.0");
  const std::string full(full_version());
  EXPECT_TRUE(std::regex_match(full, std::regex(R"(0\.2\.0 \(commit ([0-9a-f]{8,}(, modified)?|unknown)\))"))) << full;
}

}  // namespace
}  // namespace mica
