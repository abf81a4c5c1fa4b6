// SPDX-License-Identifier: Apache-2.0
// Launches as they go wrong for people: each is told in one line, with its cause and what to change; good ones are left in peace.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include "fault/support/training.hpp"
#include "support/environment_number.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

/// mpirun with a command of its own for each of two ranks.
Words two_ranks(const Words& first, const Words& second) { return Words{"mpirun", "-np", "1"} + first + Words{":", "-np", "1"} + second; }

/// A shell that hides what the launcher told the process, but its number of ranks: as a container without the launcher's socket does.
/// Each process gets a folder of its own for Open MPI, whose processes fail when two make the same one at once.
const Words kHidesTheLauncher{
    "/bin/bash", "-c",
    "own=$(mktemp -d \"$OMPI_MCA_orte_tmpdir_base/XXXXXX\"); "
    "for name in $(compgen -e); do case $name in PMIX_*|OMPI_MCA_ess*|OMPI_MCA_orte*|OMPI_MCA_pmix*|PRTE_*) unset $name;; esac; done; "
    "export OMPI_MCA_orte_tmpdir_base=$own; exec "
    "\"$@\"",
    "bash"};

int num_cores() {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  return CPU_COUNT(&mask);
}

class Launch : public ::testing::Test {
 protected:
  Launch() {
    write_tokens(folder_ / "tokens.bin", 4000);
    fs::create_directory(folder_ / "runs");
    write_text(folder_ / "x.cfg",
               "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n[data]\ntrain = " + (folder_ / "tokens.bin") +
                   "\n[train]\nsteps = 1\nmicro_batch = 2\nseq_len = 16\n[run]\ndir = " + (folder_ / "runs/x") + "\n");
  }
  [[nodiscard]] Words train(const Words& flags = {}) const { return Words{program("mica-train"), folder_ / "x.cfg"} + flags; }
  /// Within a mount namespace of its own, with what `script` mounts.
  [[nodiscard]] static Words mounted(const std::string& script, const Words& command) {
    return in_mount_namespace("{ " + script + "; } || exit 99; exec \"$@\"", command);
  }
  static void expect_refused(const Finished& seen, const Words& says) {
    ASSERT_NE(seen.status, 99) << "no mount namespace is possible\n" << seen.output;
    EXPECT_EQ(seen.status, 2) << seen.output;
    const Words lines = seen.error_lines();
    ASSERT_EQ(lines.size(), 1u) << seen.output;
    for (const std::string& part : says) EXPECT_THAT(lines[0], HasSubstr(part));
  }
  static void expect_warned(const Finished& seen, const Words& says) {
    ASSERT_NE(seen.status, 99) << "no mount namespace is possible\n" << seen.output;
    EXPECT_EQ(seen.status, 0) << seen.output;
    for (const std::string& part : says) EXPECT_THAT(seen.output, HasSubstr(part));
  }

  TemporaryFolder folder_;
};

TEST_F(Launch, ProcessesThatAreEachAWorldOfTheirOwn) {
  const auto alone = [&](const std::map<std::string, std::string>& environment) { return Child(train(), environment).wait(); };
  expect_refused(alone({{"SLURM_NTASKS", "2"}}), {"the Slurm job has 2 tasks (SLURM_NTASKS)", "srun --mpi=pmix", "srun --ntasks=1"});
  expect_refused(alone({{"SLURM_NTASKS", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}}),
                 {"srun started 2 tasks", "alone in a world of one rank", "srun --mpi=list"});
  EXPECT_FALSE(fs::exists(folder_ / "runs/x"));
  EXPECT_EQ(Child(under_mpirun(1, train()), {{"SLURM_NTASKS", "2"}}).wait().status, 0) << "one rank was asked for";
}

TEST_F(Launch, ALauncherThatTheLibraryDoesNotUnderstand) {
  const Finished seen = test::run(under_mpirun(2, kHidesTheLauncher + train()));
  EXPECT_NE(seen.status, 0) << seen.output;
  const Words lines = seen.error_lines();
  ASSERT_GE(lines.size(), 1u) << seen.output;  // the second world says so, too, unless mpirun ends it first
  EXPECT_THAT(lines[0], HasSubstr("started 2 processes"));
  EXPECT_THAT(lines[0], HasSubstr("each is alone in a world of one rank"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/x"));
}

TEST_F(Launch, MpiexecOfOneMpiAndTheLibraryOfAnother) {
  const bool is_open_mpi = test::run({program("mica-train"), "--version"}).output.find("Open MPI") != std::string::npos;
  const std::string family = is_open_mpi ? "PMI" : "OMPI_COMM_WORLD";
  expect_refused(Child(train(), {{family + "_SIZE", "2"}, {family + "_RANK", "0"}}).wait(),
                 {"started 2 processes (" + family + "_SIZE)", is_open_mpi ? "Open MPI's mpirun" : "the mpiexec of its own MPI",
                  "build it with the MPI of this launcher"});
}

TEST_F(Launch, AnotherProgramOnARank) {
  const std::string other = folder_ / "mica-train-other";
  fs::copy_file(program("mica-train"), other);
  std::ofstream(other, std::ios::app) << "another build";
  const Words theirs = Words{other} + Words{folder_ / "x.cfg"};
  expect_refused(test::run(two_ranks(train(), theirs)),
                 {"rank 1 (", ") runs " + other, "but rank 0 (", program("mica-train"), "from one build"});
  EXPECT_FALSE(fs::exists(folder_ / "runs/x"));
}

TEST_F(Launch, OtherFlagsOnARank) {
  expect_refused(test::run(two_ranks(train({"--optim.lr=0.1"}), train({"--optim.lr=0.2"}))),
                 {"rank 1 (", ") was started with --optim.lr=0.2, but rank 0 (", "with --optim.lr=0.1"});
  expect_refused(test::run(two_ranks(train(), train({"--check"}))), {"rank 1 (", ") was started with --check, but rank 0"});
  EXPECT_FALSE(fs::exists(folder_ / "runs/x"));
}

TEST_F(Launch, OtherDataOnARank) {
  for (const char* name : {"here", "there"}) {
    fs::create_directory(folder_ / name);
    fs::copy_file(folder_ / "tokens.bin", folder_ / (std::string(name) + "/t.bin"));
  }
  overwrite_token(folder_ / "there/t.bin", 1000, 15);
  overwrite_token(folder_ / "there/t.bin", 1001, 3);
  const auto run = [&](const std::string& key) {
    const Words command = train({"--" + key + "=t.bin"});
    return test::run(Words{"mpirun", "-np", "1", "-wdir", folder_ / "here"} + command + Words{":", "-np", "1", "-wdir", folder_ / "there"} +
                     command);
  };
  expect_refused(run("data.train"), {"data.train is not the same on all ranks: rank 1 (", "4000 tokens in 1 file, crc32c", "copy one set"});
  expect_refused(run("data.val"), {"data.val is not the same on all ranks: rank 1 ("});
}

TEST_F(Launch, ARunFolderThatOneRankDoesNotSee) {
  const std::string runs = folder_ / "runs";
  const auto second = [&](const std::string& script) { return test::run(two_ranks(train(), mounted(script, train()))); };
  expect_refused(second("mount -t tmpfs tmpfs '" + runs + "'"), {"run folder " + runs + "/x is not one folder for all ranks: on rank 1 (",
                                                                 "No such file or directory", "--run.dir=FOLDER"});
  expect_refused(second("mount -t tmpfs tmpfs '" + runs + "' && mkdir '" + runs + "/x'"),
                 {"on rank 1 (", "another folder of that name, without rank 0's files"});
  expect_refused(second("mount --bind '" + runs + "' '" + runs + "' && mount -o remount,bind,ro '" + runs + "'"),
                 {"on rank 1 (", "it cannot be written: Read-only file system"});
  EXPECT_FALSE(fs::exists(runs + "/x/checkpoints"));
}

TEST_F(Launch, ADiskThatIsFullOrTooSmall) {
  const std::string disk = folder_ / "disk";
  fs::create_directory(disk);
  const auto on_disk_of = [&](const std::string& kib, const Words& flags) {
    return test::run(mounted("mount -t tmpfs -o size=" + kib + "k tmpfs '" + disk + "'",
                             under_mpirun(2, train(Words{"--run.dir=" + disk + "/x"} + flags))));
  };
  expect_refused(on_disk_of("16", {}), {"the disk of run folder " + disk + "/x has ", "bytes free, but a run takes 65536"});
  // 2 x 512 x 2048 parameters in their MLPs alone, each of 12 bytes.
  expect_refused(on_disk_of("2000", {"--model.width=512"}),
                 {"the disk of run folder " + disk + "/x has ", "a checkpoint of this run takes ", "--run.dir=FOLDER"});
  EXPECT_EQ(on_disk_of("2000", {}).status, 0);
}

// --check finds what a run would be refused for, and makes no folder.
TEST_F(Launch, ACheckLooksAtTheRunsFolder) {
  const std::string disk = folder_ / "disk", would = "warning: without --check this run would be refused here: ";
  fs::create_directory(disk);
  const auto checked = [&](const std::string& mount, const Words& flags) {
    const Finished seen = test::run(mounted(mount, train(Words{"--check"} + flags)));
    EXPECT_EQ(seen.status, 0) << seen.output;
    return seen.output;
  };
  const std::string small = "mount -t tmpfs -o size=2000k tmpfs '" + disk + "'", inside = "--run.dir=" + disk + "/x/y";
  EXPECT_THAT(checked(small, {inside}), Not(HasSubstr("would be refused")));
  EXPECT_THAT(checked(small, {inside, "--model.width=512"}), HasSubstr(would + "the disk of run folder " + disk + "/x/y has "));
  EXPECT_THAT(checked("mount -t tmpfs -o ro tmpfs '" + disk + "'", {inside}),
              HasSubstr(would + "cannot create the run folder " + disk + "/x/y: " + disk + ": Read-only file system"));
  write_text(folder_ / "file", "");
  EXPECT_THAT(checked("true", {"--run.dir=" + (folder_ / "file/x")}),
              HasSubstr(would + "cannot create the run folder " + (folder_ / "file/x") + ": " + (folder_ / "file") + ": Not a directory"));
  EXPECT_THAT(checked("true", {"--run.dir=" + (folder_ / "file")}),
              HasSubstr(would + "cannot write into the run folder " + (folder_ / "file") + ": Not a directory"));
  EXPECT_FALSE(fs::exists(disk + "/x"));
}

TEST_F(Launch, CheckpointsMayLieOnAnotherDisk) {
  const std::string disk = folder_ / "disk", run = folder_ / "linked";
  fs::create_directory(disk);
  fs::create_directory(run);
  fs::create_directory_symlink(disk, run + "/checkpoints");
  const auto on_disk_of = [&](const std::string& kib, const Words& flags) {
    return test::run(
        mounted("mount -t tmpfs -o size=" + kib + "k tmpfs '" + disk + "'", under_mpirun(2, train(Words{"--run.dir=" + run} + flags))));
  };
  expect_refused(on_disk_of("2000", {"--model.width=512"}), {"the disk of run folder " + run + "/checkpoints has ", "--run.dir=FOLDER"});
  EXPECT_EQ(on_disk_of("2000", {}).status, 0);
  fs::remove(run + "/checkpoints");
  fs::create_directory(run + "/checkpoints");
  expect_refused(test::run(mounted("mount --bind '" + run + "/checkpoints' '" + run + "/checkpoints' && mount -o remount,bind,ro '" + run +
                                       "/checkpoints'",
                                   under_mpirun(2, train(Words{"--run.dir=" + run})))),
                 {"cannot write into the run folder " + run + "/checkpoints: Read-only file system"});
  fs::create_directory_symlink(folder_ / "purged", folder_ / "dangling");
  expect_refused(test::run(under_mpirun(2, train(Words{"--run.dir=" + (folder_ / "dangling")}))),
                 {"cannot create the run folder " + (folder_ / "dangling") + ": it is a link to a folder that does not exist"});
}

TEST_F(Launch, APipeIsNoTokenFile) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_refused(test::run(train(Words{"--data.train=" + (folder_ / "pipe")})), {"is a device or pipe, expected a regular file"});
}

TEST_F(Launch, ASmallDevShm) {
  expect_warned(test::run(mounted("mount -t tmpfs -o size=1m tmpfs /dev/shm", under_mpirun(2, train()))),
                {"warning: /dev/shm of ", " has 1.0 MiB, ", "for 2 ranks", "--shm-size"});
}

TEST_F(Launch, AClockThatIsHoursAhead) {
  const Words ahead = Words{"/usr/bin/faketime", "-m", "--exclude-monotonic", "-f", "+3h"} + train();
  expect_warned(test::run(two_ranks(train(), ahead)), {"warning: the clock of rank 1 (", ") is 3.0 hours ahead of that of rank 0 ("});
}

// Files of quotas, over what cgroups are mounted: one CPU for all.
TEST_F(Launch, ACpuQuotaLimitsTheThreads) {
  ASSERT_GT(num_cores(), 1) << "with one core there is one thread anyway";
  for (const Words& without_number : {Words{"-u", "OMP_NUM_THREADS"}, Words{"OMP_NUM_THREADS="}}) {
    const Finished seen =
        test::run(mounted("for at in $(sed -n 's/^\\([^ ]* \\)\\{4\\}\\([^ ]*\\) .* - cgroup2\\{0,1\\} .*/\\2/p' /proc/self/mountinfo); do "
                          "mount -t tmpfs tmpfs $at && echo 100000 100000 >$at/cpu.max && echo 100000 >$at/cpu.cfs_quota_us && "
                          "echo 100000 >$at/cpu.cfs_period_us || exit 99; done",
                          under_mpirun(1, Words{"/usr/bin/env"} + without_number + train({"--check"}))));
    expect_warned(seen, {"device   CPU, 1 OpenMP thread per rank"});
  }
}

TEST_F(Launch, AVariableWithoutANumberIsNone) {
  const std::string cores = std::to_string(num_cores());
  const Finished seen = test::run(under_mpirun(1, Words{"/usr/bin/env", "OMP_NUM_THREADS=many"} + train({"--check"})));
  expect_warned(seen, {"device   CPU, " + cores + " OpenMP thread" + (num_cores() == 1 ? "" : "s") + " per rank"});
}

TEST_F(Launch, RanksOnTheSameCore) {
  const std::string cores = std::to_string(num_cores());
  expect_warned(test::run(under_mpirun(2, Words{"/usr/bin/taskset", "-c", "0"} + train())),
                {"warning: the 2 ranks of ", num_cores() > 1 ? "have 2 threads in all, but are bound to 1 of its " + cores + " cores (0)"
                                                             : "have 2 threads in all on 1 core"});
  const std::string more = std::to_string(num_cores() + 1);
  fs::remove_all(folder_ / "runs/x");
  expect_warned(test::run(under_mpirun(num_cores() + 1, train())),
                {"warning: the " + more + " ranks of ", "have " + more + " threads in all on " + cores + " core"});
}

/// A rank with a host name of its own: for Mica a node.
Words on_node(const std::string& name, const Words& command) {
  return Words{"unshare", ::geteuid() == 0 ? "--uts" : "-Uru", "/bin/sh", "-c", "hostname " + name + " && exec \"$@\"", "sh"} + command;
}

Words busy_loop() { return {"/bin/sh", "-c", "while :; do :; done"}; }

// A rank that is stopped most of the time, as by a limit on CPUs: however loaded the machine is, it is far slower than the other.
TEST_F(Launch, ANodeThatIsMuchSlower) {
  const Words mostly_stopped{
      "/bin/sh", "-c", "rank=$$; while kill -STOP $rank; do sleep 0.08; kill -CONT $rank; sleep 0.002; done 2>/dev/null & exec \"$@\"",
      "sh"};
  const Finished seen = test::run(two_ranks(on_node("quick", train()), on_node("snail", mostly_stopped + train())));
  expect_warned(seen, {"warning: snail (rank 1) took ", "--exclude=snail"});
  EXPECT_THAT(seen.output, AnyOf(HasSubstr("ms for products that the other nodes do in"),
                                 HasSubstr("ms for copies of memory that the other nodes do in")));
}

// Two ranks on one node, and on two; beside two processes that take what they can get.
TEST_F(Launch, GoodStartsAreLeftInPeace) {
  const Child busy(busy_loop()), busy_too(busy_loop());
  for (int start = 0; start < environment_number("MICA_GOOD_STARTS", 6); ++start) {
    fs::remove_all(folder_ / "runs/x");
    const Words flags{"--log.level=debug"};
    const Finished seen =
        test::run(start % 2 == 0 ? under_mpirun(2, train(flags)) : two_ranks(on_node("one", train(flags)), on_node("two", train(flags))));
    ASSERT_EQ(seen.status, 0) << seen.output;
    EXPECT_THAT(seen.output, Not(HasSubstr("warning:"))) << "start " << start;
    EXPECT_THAT(seen.output, HasSubstr("launch   arguments "));
    EXPECT_EQ(seen.output.find("node speed") != std::string::npos, start % 2 == 1) << seen.output;
  }
}

}  // namespace
}  // namespace mica::test
