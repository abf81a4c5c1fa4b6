// SPDX-License-Identifier: Apache-2.0
#include "../../../src/mpi/init_variables.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::mpi {
namespace {

/// Sets or unsets variables; puts them back at its end.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::optional<std::string>>& variables) {
    for (const auto& [name, value] : variables) {
      before_[name] = value_of(name);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  static std::optional<std::string> value_of(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }

  std::map<std::string, std::optional<std::string>> before_;
};

const std::string kFiles = "OMPI_MCA_mca_base_param_files";  // a site's choose nothing here
const std::string kPml = "OMPI_MCA_pml", kHwloc = "HWLOC_COMPONENTS";
const std::string kRanks = "OMPI_COMM_WORLD_SIZE", kRanksHere = "OMPI_COMM_WORLD_LOCAL_SIZE";

TEST(InitVariables, AreSetOnOneNodeAndTakenBack) {
  const Environment environment(
      {{kPml, std::nullopt}, {kHwloc, std::nullopt}, {kRanks, "4"}, {kRanksHere, "4"}, {"OMPI_MCA_btl", std::nullopt}, {kFiles, ""}});
  {
    const InitVariables variables;
    EXPECT_EQ(Environment::value_of(kPml), "ob1");
    EXPECT_EQ(Environment::value_of(kHwloc), "no_os,stop");
  }
  EXPECT_EQ(Environment::value_of(kPml), std::nullopt);
  EXPECT_EQ(Environment::value_of(kHwloc), std::nullopt) << "who uses hwloc later sees the whole node";
}

TEST(InitVariables, KeepWhatTheUserHasSet) {
  const Environment environment({{kPml, "ucx"}, {kHwloc, std::nullopt}, {kRanks, "2"}, {kRanksHere, "2"}});
  {
    const InitVariables variables;
    EXPECT_EQ(Environment::value_of(kPml), "ucx");
    EXPECT_EQ(Environment::value_of(kHwloc), "no_os,stop");
  }
  EXPECT_EQ(Environment::value_of(kPml), "ucx");
}

// Those may lack the one for shared memory, which ob1 needs.
TEST(InitVariables, LeaveOb1OutWhereBtlsAreChosen) {
  const Environment environment(
      {{kPml, std::nullopt}, {kHwloc, std::nullopt}, {kRanks, "2"}, {kRanksHere, "2"}, {"OMPI_MCA_btl", "^vader,tcp"}});
  const InitVariables variables;
  EXPECT_EQ(Environment::value_of(kPml), std::nullopt);
  EXPECT_EQ(Environment::value_of(kHwloc), "no_os,stop");
}

// A site's parameter file, which the environment would outrank.
TEST(InitVariables, LeaveOb1OutWhereAParameterFileChooses) {
  for (const auto& [text, expected] : std::map<std::string, std::optional<std::string>>{{"# pml = ucx\nbtl_tcp_if_include = eth0\n", "ob1"},
                                                                                        {"pml = ^ucx\nbtl = ^uct,openib\n", "ob1"},
                                                                                        {"pml = ucx\n", std::nullopt},
                                                                                        {"x = 1\n  btl=^tcp,vader\n", std::nullopt}}) {
    const test::TemporaryFolder home;
    std::filesystem::create_directory(home / ".openmpi");
    std::ofstream(home / ".openmpi/mca-params.conf") << text;
    const Environment environment({{kPml, std::nullopt},
                                   {kHwloc, std::nullopt},
                                   {kRanks, "2"},
                                   {kRanksHere, "2"},
                                   {"OMPI_MCA_btl", std::nullopt},
                                   {kFiles, std::nullopt},
                                   {"HOME", home.path()}});
    const InitVariables variables;
    EXPECT_EQ(Environment::value_of(kPml), expected) << text;
    EXPECT_EQ(Environment::value_of(kHwloc), "no_os,stop");
  }
}

TEST(InitVariables, ReadTheParameterFilesThatAreNamed) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "a.conf") << "x = 1\n";
  std::ofstream(folder / "b.conf") << "pml = ucx\n";
  const Environment environment({{kPml, std::nullopt},
                                 {kRanks, "2"},
                                 {kRanksHere, "2"},
                                 {"OMPI_MCA_btl", std::nullopt},
                                 {kFiles, folder / "a.conf" + "," + folder / "b.conf"}});
  const InitVariables variables;
  EXPECT_EQ(Environment::value_of(kPml), std::nullopt);
}

TEST(InitVariables, AreNotSetOnSeveralNodesAndWithoutMpirun) {
  for (const std::optional<std::string>& here : {std::optional<std::string>("1"), std::optional<std::string>()}) {
    const Environment environment({{kPml, std::nullopt}, {kHwloc, std::nullopt}, {kRanks, "2"}, {kRanksHere, here}});
    const InitVariables variables;
    EXPECT_EQ(Environment::value_of(kPml), std::nullopt);
    EXPECT_EQ(Environment::value_of(kHwloc), std::nullopt);
  }
}

}  // namespace
}  // namespace mica::mpi
