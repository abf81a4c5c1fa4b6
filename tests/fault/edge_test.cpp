// SPDX-License-Identifier: Apache-2.0
// What users meet before and around a run: help, flags, limits of the machine, what is printed, the scripts.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kSource = test::source_folder();

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

class Edge : public ::testing::Test {
 protected:
  Edge() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "x.cfg", "[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 32\n[data]\ntrain = " + (folder_ / "tokens.bin") +
                                      "\n[train]\nsteps = 2\nmicro_batch = 2\nseq_len = 16\n[run]\ndir = " + (folder_ / "run") + "\n");
  }
  [[nodiscard]] std::vector<std::string> train(const std::vector<std::string>& flags) const {
    return std::vector<std::string>{program("mica-train"), folder_ / "x.cfg"} + flags;
  }
  static void expect_refused(const Finished& seen, int status, const std::vector<std::string>& says) {
    EXPECT_EQ(seen.status, status) << seen.output;
    const std::vector<std::string> lines = seen.error_lines();
    ASSERT_EQ(lines.size(), 1u) << seen.output;
    for (const std::string& part : says) EXPECT_THAT(lines[0], HasSubstr(part));
  }

  TemporaryFolder folder_;
};

// On login nodes MPI often does not start.
TEST_F(Edge, ProgramsTellOfThemselvesWithoutMpi) {
  const std::vector<std::vector<std::string>> programs{
      {"mica-train"},         {"mica-tokenize"},          {"mica-inspect"},  {"mica-convert"}, {"mica-bench"}, {"mica-convert", "reshard"},
      {"mica-bench", "gemm"}, {"mica-train", "none.cfg"}, {"mica-generate"}, {"mica-report"},  {"mica-plan"}};
  for (const std::vector<std::string>& words : programs) {
    for (const char* flag : {"-h", "--help", "--version"}) {
      std::vector<std::string> command = words;
      command[0] = program(words[0]);
      command.emplace_back(flag);
      SCOPED_TRACE(::testing::PrintToString(command));
      Child child(command, {{"OMPI_MCA_pml", "there_is_none"}});
      const Finished seen = child.wait(30);
      EXPECT_EQ(seen.status, 0) << seen.output;
      const bool is_version = std::string(flag) == "--version";
      if (is_version) {
        EXPECT_THAT(seen.output, StartsWith(words[0] + " 0.2.0 (commit "));
      } else {
        EXPECT_THAT(seen.output, HasSubstr(words[0]));
      }
      const bool is_command = !is_version && words.size() > 1 && words[0] != "mica-train";
      EXPECT_THAT(seen.output, HasSubstr(is_command ? words[0] + " " + words[1] : ""));
    }
  }
  const Finished together = test::run(under_mpirun(2, {program("mica-train"), "--help"}));
  EXPECT_EQ(together.status, 0) << together.output;
  EXPECT_EQ(count_of(together.output, "Exit status:"), 1u) << "one process speaks";
  EXPECT_THAT(together.output, HasSubstr("SIGUSR2, SIGHUP)"));
}

TEST_F(Edge, AFlagMayHaveItsValueBehindASpace) {
  const Finished seen = test::run(under_mpirun(2, train({"--train.steps", "3", "--data.order", "sequential"})));
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_EQ(step_lines(folder_ / "run").size(), 3u);
  expect_refused(test::run(under_mpirun(2, train({"--train.steps"}))), 2,
                 {"--train.steps has no value", "--train.steps=VALUE: a whole number"});
  expect_refused(test::run(under_mpirun(2, train({"--train.steps", "--check"}))), 2, {"--train.steps has no value"});
}

TEST_F(Edge, AFilePastTheUsersLimitIsAnError) {
  // Larger than what MPI needs, smaller than a shard.
  const Finished seen = test::run(under_mpirun(
      1, std::vector<std::string>{"/usr/bin/prlimit", "--fsize=16000000"} + train({"--model.width=512", "--log.metrics=false"})));
  expect_refused(seen, 2, {"a file of this run's checkpoints takes ", "at most 16000000 bytes here (ulimit -f)"});
  EXPECT_TRUE(step_lines(folder_ / "run").empty());
}

// oneDNN's products are made for a number of threads: with a smaller team their results are wrong.
TEST_F(Edge, ATeamHasAsManyThreadsAsProductsAreMadeFor) {
  const auto run_with = [&](const std::vector<std::string>& variables, const std::string& name) {
    return test::run(std::vector<std::string>{"/usr/bin/env", "OMP_NUM_THREADS=2"} + variables + train({"--run.dir=" + (folder_ / name)}));
  };
  ASSERT_EQ(run_with({}, "plain").status, 0);
  ASSERT_EQ(run_with({"OMP_DYNAMIC=true"}, "dynamic").status, 0);
  EXPECT_EQ(step_lines(folder_ / "dynamic"), step_lines(folder_ / "plain"));
  for (const std::string variable : {"OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"}) {
    expect_refused(run_with({variable}, "limited"), 2, {"OpenMP may start 1 of 2 threads per rank", "mesh.threads=1"});
  }
  EXPECT_EQ(run_with({"OMP_THREAD_LIMIT=2"}, "enough").status, 0);
}

TEST_F(Edge, ThreadsAreTheCoresThatARankHas) {
  const auto threads = [&](int num_ranks, const std::vector<std::string>& environment = {}) {
    const Finished seen = test::run(
        under_mpirun(num_ranks, std::vector<std::string>{"/usr/bin/env", "-u", "OMP_NUM_THREADS"} + environment + train({"--check"})));
    EXPECT_EQ(seen.status, 0) << seen.output;
    const std::size_t at = seen.output.find("device   CPU, ");
    return at == std::string::npos ? 0 : std::stoi(seen.output.substr(at + 14));
  };
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(threads(1), CPU_COUNT(&mask));
  EXPECT_EQ(threads(2), std::max(1, CPU_COUNT(&mask) / 2)) << "ranks that are not bound share the cores";
  EXPECT_EQ(threads(3), std::max(1, CPU_COUNT(&mask) / 3));
  EXPECT_EQ(threads(2, {"OMP_NUM_THREADS=3"}), 3);
  // Bound to a core each.
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &mask)) --last;
  EXPECT_EQ(threads(1, {"/usr/bin/taskset", "-c", std::to_string(last)}), 1);

  const std::string more = std::to_string(CPU_COUNT(&mask) + 1);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"/usr/bin/env", "OMP_NUM_THREADS=" + more} + train({"--check"}),
                                                  train({"--check", "--mesh.threads=" + more})}) {
    const Finished seen = test::run(under_mpirun(2, command));
    EXPECT_EQ(seen.status, 0) << seen.output;
    EXPECT_EQ(count_of(seen.output, "warning: rank 0 has " + more + " threads"), 1u) << seen.output;
    EXPECT_EQ(count_of(seen.output, "warning:"), 1u) << seen.output;
  }
}

TEST_F(Edge, TheStartPrintIsWhatTheUserSet) {
  const Finished seen = test::run(under_mpirun(2, train({})));
  EXPECT_EQ(seen.status, 0) << seen.output;
  const std::string before_training = seen.output.substr(0, seen.output.find("data     "));
  EXPECT_THAT(before_training, HasSubstr("\nwidth = 16\n"));
  EXPECT_THAT(before_training, HasSubstr("run/config.resolved.cfg"));
  EXPECT_THAT(before_training, Not(HasSubstr("momentum")));
  EXPECT_LE(std::ranges::count(before_training, '\n'), 25);
  EXPECT_THAT(read_text(folder_ / "run/config.resolved.cfg"), HasSubstr("\nmomentum = 0\n"));
  EXPECT_THAT(test::run(under_mpirun(1, train({"--check"}))).output, HasSubstr("\nmomentum = 0\n"));
  EXPECT_THAT(seen.output, HasSubstr(" ms/step  comm "));
  EXPECT_THAT(seen.output, Not(HasSubstr("%  peak"))) << "streams that communicate at once add up to more than the time";
}

TEST_F(Edge, AWarningOfTheWholeRunComesOnce) {
  const Finished seen = test::run(under_mpirun(2, train({"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"})));
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_EQ(count_of(seen.output, "has no replicas"), 1u) << seen.output;
}

// Progress lines go to standard error: it is that which must be a terminal for one to be redrawn.
TEST_F(Edge, ProgressIsRedrawnOnlyWhereItIsWritten) {
  std::string command = program("mica-train") + " '" + (folder_ / "x.cfg") + "' --checkpoint.interval=1 --train.steps=4";
  for (const bool to_file : {true, false}) {
    fs::remove_all(folder_ / "run");
    const std::string redirect = to_file ? " 2>'" + (folder_ / "err") + "'" : " >'" + (folder_ / "out") + "'";
    const Finished seen = test::run({"/usr/bin/env", "-u", "CI", "/usr/bin/script", "-qec", command + redirect, "/dev/null"});
    ASSERT_EQ(seen.status, 0) << seen.output;
    const std::string shown = to_file ? read_text(folder_ / "err") : seen.output;
    EXPECT_THAT(shown, HasSubstr("step      4/4"));
    EXPECT_EQ(count_of(shown, "\r\033[K") > 0, !to_file) << shown;
  }
}

TEST_F(Edge, TheTraceReportTakesARunsFolder) {
  const auto report = [](const std::string& path) { return test::run({program("mica-report"), "traces", path}); };
  expect_refused(report(folder_.path()), 2, {folder_.path(), "log.trace"});
  expect_refused(report(folder_ / "none"), 2, {folder_ / "none", "No such file"});
  write_text(folder_ / "trace-rank0.json", "[]");
  expect_refused(report(folder_.path()), 2, {folder_ / "trace-rank0.json", "not a trace of log.trace"});
  ASSERT_EQ(test::run(under_mpirun(2, train({"--log.trace=2-2"}))).status, 0);
  const Finished seen = report(folder_ / "run");
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_LT(seen.output.find("rank 0: "), seen.output.find("rank 1: "));
  const std::string to_full_disk = "exec \"$0\" traces \"$1\" > /dev/full";
  expect_refused(test::run({"/bin/bash", "-c", to_full_disk, program("mica-report"), folder_ / "run"}), 3, {"standard output"});
}

TEST_F(Edge, APageInAPipeIsWhole) {
  ASSERT_EQ(test::run(train({})).status, 0);
  const std::string to_a_pipe = "exec \"$0\" \"$1\" --out=/dev/stdout | tail -c 8";
  const Finished seen = test::run({"/bin/bash", "-c", to_a_pipe, program("mica-report"), folder_ / "run"});
  EXPECT_EQ(seen.output, "</html>\n");
}

TEST_F(Edge, APageNeedsAFolderToBeMadeIn) {
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::owner_read | fs::perms::owner_exec);
  std::vector<std::string> command{program("mica-report"), folder_ / "run", "--out=" + (folder_ / "closed/page.html")};
  if (geteuid() == 0) command.insert(command.begin(), {"setpriv", "--bounding-set=-dac_override,-dac_read_search"});
  expect_refused(test::run(command), 2, {"cannot write to the folder of --out=" + (folder_ / "closed/page.html") + ": Permission denied"});
}

TEST_F(Edge, AHelpThatCannotBeWrittenIsAFailure) {
  expect_refused(test::run({"/bin/bash", "-c", "exec \"$0\" --help > /dev/full", program("mica-train")}), 3, {"standard output"});
}

TEST_F(Edge, TheResultOfACheckIsOnStandardOutput) {
  const std::string without_errors = "exec \"$0\" \"$@\" --check 2> /dev/null";
  const Finished seen = test::run(std::vector<std::string>{"/bin/bash", "-c", without_errors} + train({"--log.level=error"}));
  EXPECT_EQ(seen.status, 0);
  for (const char* part : {"\nmomentum = 0\n", "batch    2 sequences a step", "memory plan, per rank"}) {
    EXPECT_THAT(seen.output, HasSubstr(part));
  }
}

TEST_F(Edge, ALongRunWithoutCheckpointsIsWarned) {
  const auto start_of = [&](const std::vector<std::string>& flags) {
    return test::run(train(flags + std::vector<std::string>{"--check"})).output;
  };
  const char* warning = "warning: checkpoint.interval and checkpoint.interval_minutes are 0: nothing is saved before step 1000";
  EXPECT_THAT(start_of({"--train.steps=1000"}), HasSubstr(warning));
  for (const char* flag : {"--train.steps=999", "--checkpoint.interval=500", "--checkpoint.interval_minutes=30"}) {
    EXPECT_THAT(start_of({"--train.steps=1000", flag}), Not(HasSubstr("are 0: nothing is saved"))) << flag;
  }
}

TEST_F(Edge, ARunsLossAndStepTimeAreDrawn) {
  const std::string plot = kSource + "/scripts/plot_quickstart.py";
  const std::string out = folder_ / "run.svg";
  expect_refused(test::run({"/usr/bin/env", "python3", plot, folder_ / "none", out}), 2, {folder_ / "none", "No such file"});
  write_text(folder_ / "empty.jsonl", "{\"event\":\"eval\",\"step\":1,\"val_loss\":3.5}\n");
  expect_refused(test::run({"/usr/bin/env", "python3", plot, folder_ / "empty.jsonl", out}), 2, {"no row of a training step"});
  ASSERT_EQ(test::run(train({"--data.val=" + (folder_ / "tokens.bin"), "--train.eval_batches=1"})).status, 0);
  const Finished seen = test::run({"/usr/bin/env", "python3", plot, folder_ / "run/metrics.jsonl", out});
  EXPECT_EQ(seen.status, 0) << seen.output;
  const std::string svg = read_text(out);
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_THAT(svg, HasSubstr("of which waiting for communication"));
  EXPECT_EQ(count_of(svg, "<circle "), 1u);  // one evaluation, at the end
}

/// Programs that print their name and arguments, first in the PATH.
std::map<std::string, std::string> with_fakes(const std::string& folder, const std::vector<std::string>& names) {
  fs::create_directories(folder);
  for (const std::string& name : names) {
    write_text(folder + "/" + name, "#!/bin/sh\necho FAKE " + name + " \"$@\"\n");
    fs::permissions(folder + "/" + name, fs::perms::owner_all);
  }
  return {{"PATH", folder + ":/usr/local/bin:/usr/bin:/bin"}};
}

TEST_F(Edge, TheQuickstartReadsWhatTheUserNames) {
  // A copy of its own, with programs that only say what they are asked for.
  const std::string copy = folder_ / "copy";
  fs::create_directories(copy + "/scripts");
  fs::create_directories(copy + "/build/release/bin");
  for (const char* name : {"quickstart.sh", "environment.sh", "build-jobs.sh"})
    fs::copy_file(kSource + "/scripts/" + name, copy + "/scripts/" + name);
  with_fakes(copy + "/scripts", {"install-packages.sh"});
  with_fakes(copy + "/build/release/bin", {"mica-tokenize", "mica-inspect", "mica-generate"});
  std::map<std::string, std::string> environment = with_fakes(folder_ / "bin", {"cmake"});
  write_text(folder_ / "bin/mpirun", "#!/bin/sh\necho '{\"event\":\"step\",\"loss\":1.5,\"lr\":1}' > runs/quickstart/metrics.jsonl\n");
  fs::permissions(folder_ / "bin/mpirun", fs::perms::owner_all);
  const std::string here = folder_ / "elsewhere";
  fs::create_directories(here + "/folder");
  write_text(here + "/my.novel", "It was a dark and stormy night.\n");
  write_text(here + "/folder/a.txt", std::string(3000, 'a'));
  write_text(here + "/folder/b.bin", std::string(3000, 'b'));
  const auto quickstart = [&](const std::string& arguments) {
    return Child({"/bin/sh", "-c", "cd '" + here + "' && '" + copy + "/scripts/quickstart.sh' " + arguments}, environment).wait();
  };
  const std::string text = copy + "/runs/quickstart/text.txt";
  Finished seen = quickstart("my.novel folder");
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_EQ(read_text(text), "It was a dark and stormy night.\n" + std::string(3000, 'a'));
  EXPECT_THAT(seen.output, Not(HasSubstr("only the first")));
  EXPECT_THAT(seen.output, HasSubstr("FAKE mica-generate runs/quickstart --prompt=The "));
  expect_refused(quickstart("my.poem"), 2, {"cannot read my.poem"});

  write_text(here + "/large", std::string(4'500'000, 'x'));
  seen = quickstart("large");
  EXPECT_EQ(fs::file_size(text), 4'000'000u);
  EXPECT_THAT(seen.output, HasSubstr("only the first 4 MB"));
  environment["MAX_MB"] = "9";
  seen = quickstart("large");
  EXPECT_EQ(fs::file_size(text), 4'500'000u);
  EXPECT_THAT(seen.output, Not(HasSubstr("only the first")));
}

}  // namespace
}  // namespace mica::test
