// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/checkpoint/convert.hpp"

#include "support/temporary_folder.hpp"

namespace mica::test {

/// What mica-convert prints, without a terminal.
inline std::string convert(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  EXPECT_EQ(checkpoint::run_convert(arguments, out, nullptr), ExitCode::done);
  return out.str();
}

/// Why it refuses, with an E.
template <class E = Error>
std::string convert_error(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  return error_of<E>([&] { (void)checkpoint::run_convert(arguments, out, nullptr); });
}

}  // namespace mica::test
