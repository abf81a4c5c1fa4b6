// SPDX-License-Identifier: Apache-2.0
// From mpirun to the first optimizer step: which files the ranks open on the way, and what log.level=debug tells of the time.

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Start : public ::testing::Test {
 protected:
  Start() { write_tokens(folder_ / "tokens.bin", 20'000); }

  /// The quickstart's model and batch, without its 200 steps.
  [[nodiscard]] std::vector<std::string> flags(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"--run.dir=" + run_folder(), "--data.train=" + (folder_ / "tokens.bin"),
                                 "--data.val=", "--optim.warmup_steps=0", "--train.log_interval=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] static std::string config() { return source_folder() + "/configs/gpt2-tiny-text.cfg"; }

  TemporaryFolder folder_;
};

/// Files that one process and its threads opened, as strace wrote them.
std::set<std::string> opened_files(const std::string& trace) {
  std::set<std::string> files;
  std::istringstream lines(read_text(trace));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find('"');
    const std::size_t end = line.find('"', begin + 1);
    const bool is_refused = line.find(" = -1 ") != std::string::npos;
    if (begin != std::string::npos && end != std::string::npos && !is_refused) files.insert(line.substr(begin + 1, end - begin - 1));
  }
  return files;
}

// Each is a request to the file system that programs are on: on a cluster a thousand ranks ask it at the same moment.
TEST_F(Start, ARankOpensAtMostTwoHundredFiles) {
  const std::string script = "exec strace -f -q --seccomp-bpf -e trace=open,openat,openat2 -o \"$0.$OMPI_COMM_WORLD_RANK\" \"$@\"";
  std::vector<std::string> command{"sh", "-c", script, folder_ / "trace", program("mica-train"), config()};
  for (const std::string& flag : flags({"--train.steps=1"})) command.push_back(flag);
  const Finished done = run(under_mpirun(4, command), 300);
  ASSERT_EQ(done.status, 0) << done.output;
  for (const int rank : {0, 1, 2, 3}) {
    const std::set<std::string> files = opened_files(folder_ / ("trace." + std::to_string(rank)));
    EXPECT_TRUE(files.contains(folder_ / "tokens.bin")) << "strace saw what rank " << rank << " read";
    EXPECT_LE(files.size(), 200u) << "rank " << rank << ": " << ::testing::PrintToString(files);
  }
}

/// Phase -> milliseconds, of the table in an output.
struct Table {
  double total_ms = 0, sum_ms = 0;
  std::map<std::string, double> phases;
  int num_products = 0;
};

Table table_in(const std::string& output) {
  Table table;
  std::istringstream lines(output.substr(std::min(output.find("start    "), output.size())));
  std::string line;
  std::getline(lines, line);
  table.total_ms = std::atof(line.substr(std::min<std::size_t>(9, line.size())).c_str());
  while (std::getline(lines, line) && line.starts_with("  ") && !line.starts_with("  of which")) {
    const double ms = std::atof(line.substr(26).c_str());
    table.phases[line.substr(2, line.find("  ", 2) - 2)] = ms;
    table.sum_ms += ms;
  }
  if (const std::size_t to_make = line.find("to make "); to_make != std::string::npos) {
    table.num_products = std::atoi(line.substr(to_make + 8).c_str());
  }
  return table;
}

TEST_F(Start, DebugTellsWhereTheTimeToTheFirstStepWent) {
  const Finished plain = run(training(2, config(), flags({"--train.steps=1"})));
  ASSERT_EQ(plain.status, 0) << plain.output;
  EXPECT_THAT(plain.output, Not(HasSubstr("first optimizer step")));
  const std::vector<StepLine> plain_steps = step_lines(run_folder());
  std::filesystem::remove_all(run_folder());

  const Finished told = run(training(2, config(), flags({"--train.steps=1", "--log.level=debug"})));
  ASSERT_EQ(told.status, 0) << told.output;
  EXPECT_THAT(told.output, HasSubstr(" ms from mpirun to the end of the first optimizer step\n"));
  const Table table = table_in(told.output);
  std::vector<std::string> names;
  for (const auto& [name, ms] : table.phases) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("MPI_Init", "config", "data", "device and mesh", "first backward", "first batch", "first forward",
                                 "first optimizer step", "initialization", "launcher", "loading the program", "looking at the machines",
                                 "memory check", "model and plan", "run folder"));
  for (const char* name : {"MPI_Init", "first forward", "first backward", "first optimizer step"}) {
    EXPECT_GT(table.phases.at(name), 0) << name;
  }
  EXPECT_NEAR(table.total_ms, table.sum_ms, 2) << "every phase is rounded";
  EXPECT_GT(table.total_ms, 0);
  EXPECT_LT(table.total_ms, told.seconds * 1e3 + 20) << "a clock tick at each end";
  EXPECT_GE(table.num_products, 12) << "forward, dx and dw of four layers of a block";
  EXPECT_EQ(step_lines(run_folder()), plain_steps) << "waiting changes no bit";
}

TEST_F(Start, DebugTellsOfTheCheckpointOfAResumedRun) {
  ASSERT_EQ(run(training(2, config(), flags({"--train.steps=1"}))).status, 0);
  const Finished resumed = run(training(2, config(), flags({"--train.steps=3", "--log.level=debug"})));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  const Table table = table_in(resumed.output.substr(resumed.output.find("resume   ")));
  EXPECT_TRUE(table.phases.contains("checkpoint") && table.phases.at("checkpoint") > 0) << resumed.output;
  EXPECT_THAT(resumed.output.substr(resumed.output.find("end of the first optimizer step") + 1),
              Not(HasSubstr("end of the first optimizer step")))
      << "the first step alone";
}

}  // namespace
}  // namespace mica::test
