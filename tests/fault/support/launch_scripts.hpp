// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {

/// Notes its name and each argument in brackets; apart from them, the variables that -x names.
inline constexpr const char* kNote =
    "{ printf '%s' \"${0##*/}\"; last=; for each in \"$@\"; do\n"
    "    if [[ $last == -x ]]; then echo \"$each=${!each}\" >&3; elif [[ $each != -x ]]; then printf ' [%s]' \"$each\"; fi\n"
    "    last=$each\n"
    "  done; echo; } >> \"$CALLS\" 3>> \"$CALLS.variables\"\n";

inline constexpr const char* kModel = "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n";

/// A script of scripts/launch. Where the launcher or the batch system is not asked for what it does itself, a program of its name stands
/// for it.
class LaunchScripts : public ::testing::Test {
 protected:
  LaunchScripts() { std::filesystem::create_directories(folder_ / "bin"); }

  /// A program of this name comes first in the PATH.
  void stand_in(const std::string& name, const std::string& script) const {
    write_text(folder_ / ("bin/" + name), "#!/bin/bash\n" + script);
    std::filesystem::permissions(folder_ / ("bin/" + name), std::filesystem::perms::owner_all);
  }
  [[nodiscard]] static std::string script(const std::string& name) { return test::source_folder() + "/scripts/launch/" + name; }
  [[nodiscard]] std::map<std::string, std::string> with(std::map<std::string, std::string> environment) const {
    environment["PATH"] = folder_ / "bin:/usr/local/bin:/usr/bin:/bin";
    environment["CALLS"] = folder_ / "calls";
    return environment;
  }
  [[nodiscard]] Finished launch(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) const {
    for (const char* name : {"calls", "calls.variables"}) std::filesystem::remove(folder_ / name);
    return Child(command, with(environment)).wait();
  }
  /// A line for each call of a program that stands in.
  [[nodiscard]] std::vector<std::string> calls() const { return lines_of("calls"); }
  /// NAME=VALUE of each that mpirun was told to pass on. Which the machine adds to the test's own is unknown.
  [[nodiscard]] std::vector<std::string> variables() const { return lines_of("calls.variables"); }
  [[nodiscard]] std::vector<std::string> lines_of(const std::string& name) const {
    std::vector<std::string> found;
    std::istringstream lines(read_text(folder_ / name));
    for (std::string line; std::getline(lines, line);) found.push_back(line);
    return found;
  }
  static void expect_refused(const Finished& seen, const std::string& says) {
    EXPECT_EQ(seen.status, 2) << seen.output;
    EXPECT_THAT(seen.error_lines(), ::testing::ElementsAre(::testing::HasSubstr(says))) << seen.output;
  }

  TemporaryFolder folder_;
};

}  // namespace mica::test
