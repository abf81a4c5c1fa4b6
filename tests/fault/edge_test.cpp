// What users meet before and around a run: help, flags, limits of the machine, what is printed, the scripts.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kSource = test::source_folder();

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Edge : public ::testing::Test {
 protected:
  Edge() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "x.cfg",
               "[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 32\n[data]\ntrain = " + (folder_ / "tokens.bin") +
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
  const std::vector<std::vector<std::string>> programs{{"mica-train"},   {"mica-tokenize"}, {"mica-inspect"},
                                                       {"mica-convert"}, {"mica-bench"},    {"mica-convert", "reshard"},
                                                       {"mica-bench", "gemm"}, {"mica-train", "none.cfg"}};
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
      EXPECT_THAT(seen.output, HasSubstr(is_version ? "0.1.0" : words[0]));
      const bool is_command = !is_version && words.size() > 1 && words[0] != "mica-train";
      EXPECT_THAT(seen.output, HasSubstr(is_command ? words[0] + " " + words[1] : ""));
    }
  }
  const Finished together = test::run(under_mpirun(2, {program("mica-train"), "--help"}));
  EXPECT_EQ(together.status, 0) << together.output;
  EXPECT_EQ(count_of(together.output, "Exit status:"), 1u) << "one process speaks";
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
  const Finished seen = test::run(under_mpirun(1, std::vector<std::string>{"/usr/bin/prlimit", "--fsize=16000000"} +
                                                      train({"--model.width=512", "--log.metrics=false"})));
  expect_refused(seen, 3, {"File too large", "step-00000002"});
}

TEST_F(Edge, TheMemoryLimitOfACgroupIsKept) {
  // The memory cgroup of this process, in version 1 or 2.
  std::ifstream cgroups("/proc/self/cgroup");
  std::string version_1, version_2;
  for (std::string line; std::getline(cgroups, line);) {
    const std::size_t at = line.find(":memory:");
    if (at != std::string::npos) version_1 = "/sys/fs/cgroup/memory" + line.substr(at + 8);
    if (line.starts_with("0::")) version_2 = "/sys/fs/cgroup" + line.substr(3);
  }
  const bool is_v1 = !version_1.empty();
  const std::string outer = (is_v1 ? version_1 : version_2) + "/mica_test_" + std::to_string(getpid());
  const std::string file = is_v1 ? "/memory.limit_in_bytes" : "/memory.max";
  std::error_code error;
  fs::create_directory(outer, error);
  if (!error && !is_v1) std::ofstream(outer + "/cgroup.subtree_control") << "+memory";
  if (!error) fs::create_directory(outer + "/inner", error);
  if (!error) std::ofstream(outer + file) << (std::int64_t{4} << 30);
  std::int64_t limit = 0;
  std::ifstream(outer + file) >> limit;
  const auto remove = [&] {
    std::error_code ignored;
    for (const std::string& path : {outer + "/inner", outer}) {
      for (int i = 0; i < 100 && fs::exists(path, ignored) && rmdir(path.c_str()) != 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  };
  if (limit != std::int64_t{4} << 30) {
    remove();
    GTEST_SKIP() << "no memory cgroup can be made here (" << outer << "): unit_train and mpi_train_memory_limit test the rest";
  }
  // In the inner group, which has no limit of its own. A rank needs less than 4 GiB, two need more.
  const auto inside = [&](int num_ranks) {
    return std::vector<std::string>{"/bin/sh", "-c", "echo $$ > '" + outer + "/inner/cgroup.procs' && exec \"$@\"", "sh"} +
           under_mpirun(num_ranks, train({"--model.width=4096", "--fsdp.strategy=no_shard", "--optim.type=sgd"}));
  };
  const Finished two = test::run(inside(2));
  expect_refused(two, 2, {"2.26 GiB of memory a rank", "for 2 ranks", is_v1 ? "memory.limit_in_bytes of the cgroup" : "memory.max of the cgroup",
                          "mica_test_", "4.00 GiB", "--mem"});
  remove();
  EXPECT_FALSE(fs::exists(outer));
}

TEST_F(Edge, ThreadsAreTheCoresThatARankHas) {
  const auto threads = [&](int num_ranks) {
    const Finished seen = test::run(under_mpirun(num_ranks, std::vector<std::string>{"/usr/bin/env", "-u", "OMP_NUM_THREADS"} + train({"--check"})));
    EXPECT_EQ(seen.status, 0) << seen.output;
    const std::size_t at = seen.output.find("device   CPU, ");
    return at == std::string::npos ? 0 : std::stoi(seen.output.substr(at + 14));
  };
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(threads(1), CPU_COUNT(&mask));
  EXPECT_EQ(threads(2), std::max(1, CPU_COUNT(&mask) / 2));

  const std::string more = std::to_string(CPU_COUNT(&mask) + 1);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"/usr/bin/env", "OMP_NUM_THREADS=" + more} + train({"--check"}), train({"--check", "--mesh.threads=" + more})}) {
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
  const std::string report = kSource + "/scripts/trace_report.py";
  expect_refused(test::run({"/usr/bin/env", "python3", report, folder_.path()}), 2, {folder_.path(), "log.trace"});
  expect_refused(test::run({"/usr/bin/env", "python3", report, folder_ / "none"}), 2, {folder_ / "none", "No such file"});
  write_text(folder_ / "trace-rank0.json", "[]");
  expect_refused(test::run({"/usr/bin/env", "python3", report, folder_.path()}), 2, {folder_ / "trace-rank0.json", "no trace of log.trace"});
  ASSERT_EQ(test::run(under_mpirun(2, train({"--log.trace=2-2"}))).status, 0);
  const Finished seen = test::run({"/usr/bin/env", "python3", report, folder_ / "run"});
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_LT(seen.output.find("rank 0: "), seen.output.find("rank 1: "));
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

TEST_F(Edge, TheLaunchScriptCountsTheHostsCores) {
  const std::string script = kSource + "/scripts/launch/mpirun-cpu.sh";
  std::map<std::string, std::string> environment = with_fakes(folder_ / "bin", {"mpirun"});
  environment["HOSTFILE"] = folder_ / "hosts";
  environment["THREADS"] = "4";
  const auto launch = [&](const std::string& hosts, const std::map<std::string, std::string>& more = {}) {
    write_text(folder_ / "hosts", hosts);
    std::map<std::string, std::string> all = environment;
    all.insert(more.begin(), more.end());
    return Child({script, "x.cfg"}, all).wait();
  };
  // 2 ranks of 4 cores on one, 1 on the other: a rank does not lie on two hosts.
  EXPECT_THAT(launch("# hosts\nn1 slots=11\n\nn2 slots = 5 max_slots=9\n").output, HasSubstr("FAKE mpirun -np 3 --hostfile"));
  EXPECT_THAT(launch("n1\n", {{"RANKS", "7"}}).output, HasSubstr("FAKE mpirun -np 7 --hostfile"));
  expect_refused(launch("n1 slots=8\nn2\n"), 2, {"hosts:2: n2 has no slots=CORES"});
  expect_refused(launch("n1 slots=3\n"), 2, {"no host has 4 cores"});
}

TEST_F(Edge, TheQuickstartReadsWhatTheUserNames) {
  // A copy of its own, with programs that only say what they are asked for.
  const std::string copy = folder_ / "copy";
  fs::create_directories(copy + "/scripts");
  fs::create_directories(copy + "/build/release/bin");
  for (const char* name : {"quickstart.sh", "environment.sh"}) fs::copy_file(kSource + "/scripts/" + name, copy + "/scripts/" + name);
  with_fakes(copy + "/scripts", {"install-packages.sh"});
  with_fakes(copy + "/build/release/bin", {"mica-tokenize", "mica-inspect"});
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
