// SPDX-License-Identifier: Apache-2.0
// scripts/launch/mpirun-*.sh: what mpirun is given, and that signals become saves.

#include "fault/support/launch_scripts.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST_F(LaunchScripts, MpirunIsGivenRanksCoresAndAllArguments) {
  stand_in("mpirun", std::string(kNote) + "echo \"threads $OMP_NUM_THREADS, places $OMP_PLACES\"\nexit $STATUS\n");
  for (const char* status : {"0", "2", "75"}) {
    const Finished seen =
        launch({script("mpirun-cpu.sh"), "my run.cfg", "--train.steps=5", "--data.train=a b.bin"},
               {{"RANKS", "3"}, {"THREADS", "2"}, {"MICA_BIN", "/opt/mica/bin"}, {"STATUS", status}, {"OMP_NUM_THREADS", "3"}});
    EXPECT_EQ(std::to_string(seen.status), status) << seen.output;
    EXPECT_THAT(seen.output, HasSubstr("threads 2, places cores"));
    EXPECT_THAT(calls(), ElementsAre("mpirun [-np] [3] [--map-by] [slot:PE=2] [--bind-to] [core] "
                                     "[/opt/mica/bin/mica-train] [my run.cfg] [--mesh.device=cpu] "
                                     "[--train.steps=5] [--data.train=a b.bin]"));
  }
}

// Open MPI takes a slot for a rank of any number of cores. A rank does not lie on two hosts.
TEST_F(LaunchScripts, RanksAreTheHostsCores) {
  stand_in("mpirun",
           std::string(kNote) + "while [ \"$1\" != --hostfile ]; do shift; done\necho \"$2\" > \"$CALLS.hosts\"\ncat \"$2\"\nexit 75\n");
  const auto launch_on = [&](const std::string& hosts, std::map<std::string, std::string> environment = {}) {
    write_text(folder_ / "hosts", hosts);
    environment.insert({{"HOSTFILE", folder_ / "hosts"}, {"THREADS", "4"}});
    return launch({script("mpirun-cpu.sh"), "x.cfg"}, environment);
  };
  const Finished seen = launch_on("# hosts\nn1 slots=11\n\nn2 slots = 5 max_slots=9\nn3 max_slots=9 slots=3\n");
  EXPECT_EQ(seen.status, 75);
  EXPECT_EQ(seen.output,
            "mica: " + (folder_ / "hosts") + ":5: n3 has fewer than 4 cores: no rank starts there\nn1 slots=2\nn2 slots=1 max_slots=9\n");
  EXPECT_THAT(calls(), ElementsAre(AllOf(HasSubstr("mpirun [-np] [3] [--hostfile] ["), HasSubstr("] [--map-by] [slot:PE=4]"))));
  const std::string given = read_text(folder_ / "calls.hosts");
  EXPECT_FALSE(fs::exists(given.substr(0, given.find('\n')))) << given;
  EXPECT_EQ(launch_on("n1 slots=8\nn2 slots=8\n", {{"RANKS", "3"}}).output, "n1 slots=2\nn2 slots=2\n");
  EXPECT_THAT(calls(), ElementsAre(HasSubstr("mpirun [-np] [3] [--hostfile]")));
  EXPECT_EQ(launch_on("n1\n", {{"RANKS", "7"}, {"THREADS", "1"}}).output, "n1\n");
  EXPECT_THAT(calls(), ElementsAre(HasSubstr("mpirun [-np] [7] [--hostfile]")));
  EXPECT_EQ(launch_on("n1 slots=9\n", {{"CORES_PER_RANK", "2"}}).output, "n1 slots=4\n");  // two threads share a core
  EXPECT_THAT(calls(), ElementsAre(AllOf(HasSubstr("[-np] [4]"), HasSubstr("[slot:PE=2]"))));
  expect_refused(launch_on("n1\n", {{"RANKS", "7"}}), "hosts:1: n1 has no slots=CORES");
  expect_refused(launch_on("n1 slots=8\nn2\n"), "hosts:2: n2 has no slots=CORES");
  expect_refused(launch_on("n1 slots=3\n"), "no host has 4 cores");
  expect_refused(launch_on("n1 slots=3\n", {{"RANKS", "1"}}), "no host has 4 cores");
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(LaunchScripts, NumbersAndHostfilesAreChecked) {
  stand_in("mpirun", std::string(kNote) + "while [ \"$1\" != --hostfile ]; do shift; done\ncat \"$2\"\n");
  const auto launch_with = [&](const std::string& name, const std::map<std::string, std::string>& environment) {
    return launch({script(name), "x.cfg"}, environment);
  };
  for (const std::string value : {"0", "abc", "-1", "1.5"}) {
    expect_refused(launch_with("mpirun-cpu.sh", {{"THREADS", value}}), "THREADS is '" + value + "', expected a whole number above 0");
    expect_refused(launch_with("mpirun-cpu.sh", {{"RANKS", value}}), "RANKS is '" + value + "'");
    expect_refused(launch_with("mpirun-cpu.sh", {{"CORES_PER_RANK", value}}), "CORES_PER_RANK is '" + value + "'");
    expect_refused(launch_with("mpirun-gpu.sh", {{"GPUS_PER_NODE", value}}), "GPUS_PER_NODE is '" + value + "'");
  }
  write_text(folder_ / "hosts", "# none yet\n\n");
  for (const char* name : {"mpirun-cpu.sh", "mpirun-gpu.sh"}) {
    expect_refused(launch_with(name, {{"HOSTFILE", folder_ / "none"}, {"GPUS_PER_NODE", "1"}}),
                   "cannot read HOSTFILE=" + (folder_ / "none"));
    expect_refused(launch_with(name, {{"HOSTFILE", folder_ / "hosts"}, {"GPUS_PER_NODE", "1"}}), "names no hosts");
  }
  EXPECT_THAT(calls(), IsEmpty());
  write_text(folder_ / "hosts", "n1 slots=8\r\nn2 slots=8\r\n");
  EXPECT_EQ(launch_with("mpirun-cpu.sh", {{"HOSTFILE", folder_ / "hosts"}, {"THREADS", "4"}}).output, "n1 slots=2\nn2 slots=2\n");
  // To awk the first is an assignment, to grep the second is a flag.
  for (const std::string name : {"nodes=2", "-hosts"}) {
    fs::copy_file(folder_ / "hosts", folder_ / name);
    const Finished seen = launch({"/bin/bash", "-c", "cd " + folder_.path() + " && exec \"$0\" x.cfg </dev/null", script("mpirun-cpu.sh")},
                                 {{"HOSTFILE", name}, {"THREADS", "4"}});
    EXPECT_EQ(seen.output, "n1 slots=2\nn2 slots=2\n");
  }
}

// nproc counts hardware threads, and obeys variables of OpenMP.
TEST_F(LaunchScripts, WithoutRanksEachCoreOfThisMachineGetsOne) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  const int cpus = CPU_COUNT(&set);
  stand_in("mpirun", kNote);
  const auto ranks_are = [&](int ranks) {
    (void)launch({script("mpirun-cpu.sh"), "x.cfg"}, {{"OMP_NUM_THREADS", "1"}, {"OMP_THREAD_LIMIT", "1"}});
    EXPECT_THAT(calls(), ElementsAre(HasSubstr("mpirun [-np] [" + std::to_string(ranks) + "] ")));
  };
  for (const int per_core : {1, 2}) {
    std::string list = "# CPU,Core,Socket\n";
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
      // Those that it may not use are on a core of their own; each of the others' sockets has one core, 0.
      list += std::to_string(cpu) + (CPU_ISSET(cpu, &set) ? ",0," + std::to_string(seen++ / per_core) : ",7,7") + "\n";
    }
    stand_in("lscpu", "cat <<EOF\n" + list + "EOF\n");
    ranks_are((cpus + per_core - 1) / per_core);
  }
  for (const char* restricted : {"exit 1\n", "printf '0,,\\n1,,\\n'\n", "printf '0,-,-\\n'\n"}) {
    stand_in("lscpu", restricted);
    ranks_are(cpus);
  }
}

TEST_F(LaunchScripts, EachGpuGetsARank) {
  stand_in("mpirun", kNote);
  stand_in("nvidia-smi", "[ \"$*\" = --list-gpus ] && printf 'GPU 0: a\\n  MIG 3g.20gb Device 0: c\\nGPU 1: b\\n'\n");
  const auto launch_with = [&](std::map<std::string, std::string> environment) {
    environment["MICA_BIN"] = "/opt/mica/bin";
    return launch({script("mpirun-gpu.sh"), "x.cfg", "--run.name=a b"}, environment);
  };
  EXPECT_EQ(launch_with({}).status, 0);
  EXPECT_THAT(calls(), ElementsAre("mpirun [-np] [2] [--map-by] [ppr:2:node] [--bind-to] [none] "
                                   "[/opt/mica/bin/mica-train] [x.cfg] [--mesh.device=cuda] [--run.name=a b]"));
  write_text(folder_ / "hosts", "n1 slots=8\n# n2\n\nn3 slots=8\nn4 slots=8\n");
  EXPECT_EQ(launch_with({{"HOSTFILE", folder_ / "hosts"}, {"GPUS_PER_NODE", "4"}, {"NCCL_CROSS_NIC", "0"}}).status, 0);
  EXPECT_THAT(calls(),
              ElementsAre(HasSubstr("[-np] [12] [--hostfile] [" + (folder_ / "hosts") + "] [--map-by] [ppr:4:node] [--bind-to] [none]")));
  stand_in("nvidia-smi", "exit 9\n");
  expect_refused(launch_with({}), "GPUS_PER_NODE=N");
}

// Over ssh mpirun passes only its own on.
TEST_F(LaunchScripts, VariablesOfTheLibrariesReachOtherHosts) {
  stand_in("mpirun", kNote);
  write_text(folder_ / "hosts", "n1 slots=8\nn2 slots=8\n");
  const std::map<std::string, std::string> environment{{"HOSTFILE", folder_ / "hosts"},
                                                       {"GPUS_PER_NODE", "8"},
                                                       {"THREADS", "4"},
                                                       {"NCCL_NET", "a b"},
                                                       {"UCX_TLS", "rc,x"},
                                                       {"FI_PROVIDER", "efa"},
                                                       {"CUDA_CACHE_PATH", "/c"},
                                                       {"MICA_ISA", "avx2"},
                                                       {"LD_LIBRARY_PATH", "/l:/m"},
                                                       {"OMP_PROC_BIND", "true"},
                                                       {"HDF5_USE_FILE_LOCKING", "FALSE"},
                                                       {"ONEDNN_MAX_CPU_ISA", "AVX2"},
                                                       {"MALLOC_MMAP_THRESHOLD_", "9"},
                                                       {"FIGURE", "1"},
                                                       {"MY_LD_LIBRARY_PATH", "1"},
                                                       {"MY_NCCL_NET", "1"}};
  for (const char* name : {"mpirun-cpu.sh", "mpirun-gpu.sh"}) {
    EXPECT_EQ(launch({script(name), "x.cfg"}, environment).status, 0);
    const std::vector<std::string> seen = variables();
    EXPECT_THAT(seen, IsSupersetOf({"NCCL_NET=a b", "UCX_TLS=rc,x", "FI_PROVIDER=efa", "CUDA_CACHE_PATH=/c", "MICA_ISA=avx2",
                                    "LD_LIBRARY_PATH=/l:/m", "OMP_PROC_BIND=true", "HDF5_USE_FILE_LOCKING=FALSE", "ONEDNN_MAX_CPU_ISA=AVX2",
                                    "MALLOC_MMAP_THRESHOLD_=9"}));
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), seen.size()) << "one is given twice";
    EXPECT_THAT(seen, Each(ContainsRegex("^(MICA|OMP|GOMP|NCCL|UCX|FI|CUDA|HDF5|ONEDNN|DNNL|OPENBLAS|MALLOC)_|^LD_LIBRARY_PATH=")));
    if (std::string(name) == "mpirun-cpu.sh") {
      EXPECT_THAT(seen, IsSupersetOf({"OMP_NUM_THREADS=4", "OMP_PLACES=cores"}));
    } else {
      EXPECT_THAT(seen, Contains("NCCL_CROSS_NIC=1"));
    }
  }
  std::map<std::string, std::string> other = environment;
  other.insert({{"NCCL_CROSS_NIC", "0"}, {"CUDA_VISIBLE_DEVICES", "2,3"}});
  (void)launch({script("mpirun-gpu.sh"), "x.cfg"}, other);
  EXPECT_THAT(variables(), Contains("NCCL_CROSS_NIC=0"));
  EXPECT_THAT(variables(), Not(Contains("CUDA_VISIBLE_DEVICES=2,3"))) << "a scheduler chooses the GPUs of each node";
}

TEST_F(LaunchScripts, AConfigIsNeeded) {
  for (const char* program : {"mpirun", "srun", "scontrol"}) stand_in(program, kNote);
  const std::map<std::string, std::string> environment{{"SLURM_CPUS_PER_TASK", "1"}, {"SLURM_JOB_ID", "7"}, {"GPUS_PER_NODE", "1"}};
  for (const char* name : {"mpirun-cpu.sh", "mpirun-gpu.sh", "slurm-cpu.sbatch", "slurm-gpu.sbatch"}) {
    expect_refused(launch({"/bin/bash", script(name)}, environment), "CONFIG");
    EXPECT_THAT(calls(), IsEmpty()) << name;
  }
}

/// mpirun that tells of its signals, for 30 s. It has what it needs when it says "runs".
std::string mpirun_that(const std::string& on_usr1) {
  return "trap 'echo got USR1; " + on_usr1 +
         "' USR1\ntrap 'echo got TERM; exit 9' TERM\ntrap 'echo got INT; exit 8' INT\n"
         "echo runs\nuntil ((SECONDS > 30)); do sleep 0.02; done\n";
}

TEST_F(LaunchScripts, ABugReportHasBothEndsOfALongLog) {
  fs::create_directories(folder_ / "run 12:30");
  std::string log;
  for (int line = 1; line <= 4000; ++line) log += fmt::format("line {}\n", line);
  write_text(folder_ / "run 12:30/log.txt", log);
  write_text(folder_ / "run 12:30/metrics.jsonl", "{}\n");
  // Without another name for the report, in which tar may see a host.
  const Finished made = launch({"/bin/bash", "-c", "cd " + folder_.path() + " && exec \"$0\" 'run 12:30'", script("bug-report.sh")},
                               {{"MICA_BIN", test::program_folder()}});
  ASSERT_EQ(made.status, 0) << made.output;
  ASSERT_EQ(test::run({"/bin/tar", "-C", folder_.path(), "-xzf", folder_ / "run 12:30-report.tar.gz"}).status, 0);
  const std::vector<std::string> lines = lines_of("report/log.txt");
  ASSERT_EQ(lines.size(), 3000u);
  EXPECT_EQ(lines.front(), "line 1");
  EXPECT_EQ(lines[999], "line 1000");
  EXPECT_EQ(lines[1000], "line 2001");
  EXPECT_EQ(lines.back(), "line 4000");
  EXPECT_EQ(read_text(folder_ / "report/metrics.jsonl"), "{}\n");
}

TEST_F(LaunchScripts, SignalsBecomeOneRequestToSave) {
  stand_in("mpirun", mpirun_that("exit 75"));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    for (const bool to_group : {false, true}) {  // as `kill` and as a terminal's Ctrl-C does it
      SCOPED_TRACE(std::to_string(signal) + (to_group ? " to the group" : ""));
      Child child({script("mpirun-cpu.sh"), "x.cfg"}, with({{"RANKS", "1"}}));
      ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
      ASSERT_EQ(::kill(to_group ? -child.pid() : child.pid(), signal), 0);
      const Finished seen = child.wait(20);
      EXPECT_EQ(seen.status, 75) << seen.output;
      EXPECT_THAT(seen.output, HasSubstr("got USR1"));
      EXPECT_THAT(seen.output, Not(HasSubstr("got TERM")));
      EXPECT_THAT(seen.output, Not(HasSubstr("got INT")));
      EXPECT_EQ(seen.output.find("once more to quit") != std::string::npos, signal != SIGUSR1 && signal != SIGUSR2) << seen.output;
    }
  }
}

// The trap is held up by a full pipe until mpirun has ended: then wait's own status is that of the signal.
TEST_F(LaunchScripts, AnEndOfMpirunWhileTheTrapRunsIsNotMissed) {
  stand_in("mpirun", mpirun_that("exit 75"));
  Child child(
      {"/bin/bash", "-c", "{ head -c 65536 /dev/zero >&2; exec \"$0\" x.cfg; } 2> >(sleep 3; cat >/dev/null)", script("mpirun-cpu.sh")},
      with({{"RANKS", "1"}}));
  ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGHUP), 0);
  EXPECT_EQ(child.wait(20).status, 75);
}

// A lost ssh connection: what the script prints cannot be written.
TEST_F(LaunchScripts, AHangUpSavesThoughTheTerminalIsGone) {
  stand_in("mpirun", mpirun_that("exit 75"));
  Child child({"/bin/bash", "-c", "exec \"$0\" x.cfg 2>/dev/full", script("mpirun-cpu.sh")}, with({{"RANKS", "1"}}));
  ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGHUP), 0);
  const Finished seen = child.wait(20);
  EXPECT_EQ(seen.status, 75) << seen.output;
  EXPECT_THAT(seen.output, HasSubstr("got USR1"));
}

// Ctrl-C ends tee first.
TEST_F(LaunchScripts, ItsSaveOutlivesTheReaderOfItsOutput) {
  stand_in("mpirun", "trap 'echo saved >> \"$CALLS\"; exit 75' USR1\necho runs\nuntil ((SECONDS > 30)); do sleep 0.02; done\n");
  const std::string piped = "trap : INT; \"$0\" x.cfg 2>&1 | head -n 1; exit \"${PIPESTATUS[0]}\"";
  Child child({"/bin/bash", "-c", piped, script("mpirun-cpu.sh")}, with({{"RANKS", "1"}}));
  ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // head has ended
  ASSERT_EQ(::kill(-child.pid(), SIGINT), 0);
  const Finished seen = child.wait(20);
  EXPECT_EQ(seen.status, 75) << "the script waits for it\n" << seen.output;
  EXPECT_EQ(calls(), std::vector<std::string>{"saved"});
}

TEST_F(LaunchScripts, ASecondInterruptEndsTheRunAtOnce) {
  stand_in("mpirun", mpirun_that(":"));  // it saves for ever
  for (const int signal : {SIGINT, SIGTERM}) {
    Child child({script("mpirun-gpu.sh"), "x.cfg"}, with({{"GPUS_PER_NODE", "1"}}));
    ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
    ASSERT_EQ(::kill(child.pid(), SIGUSR1), 0);  // of a batch system: no interrupt yet
    ASSERT_TRUE(child.wait_for("got USR1")) << child.wait(1).output;
    ASSERT_EQ(::kill(child.pid(), signal), 0);
    ASSERT_TRUE(child.wait_for("once more to quit")) << child.wait(1).output;
    ASSERT_TRUE(child.is_running());
    ASSERT_EQ(::kill(child.pid(), signal), 0);
    const Finished seen = child.wait(20);
    EXPECT_EQ(seen.status, 9) << seen.output;
    EXPECT_THAT(seen.output, HasSubstr("got TERM"));
  }
}

// With the real launcher and program, whatever Open MPI does on signals of its own.
TEST_F(LaunchScripts, AnInterruptedRunSaves) {
  write_tokens(folder_ / "tokens.bin", 4000);
  write_text(folder_ / "run.cfg", kModel + ("[data]\ntrain = " + (folder_ / "tokens.bin")) +
                                      "\n[train]\nsteps = 1000000\nmicro_batch = 2\nseq_len = 16\nlog_interval = 10\n");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    const std::string run = folder_ / ("signal-" + std::to_string(signal));
    Child child({script("mpirun-cpu.sh"), folder_ / "run.cfg", "--run.dir=" + run}, {{"RANKS", "2"}, {"MICA_BIN", test::program_folder()}});
    ASSERT_TRUE(child.wait_for("step     20/")) << child.wait(1).output;
    ::kill(child.pid(), signal);
    const Finished stopped = child.wait(60);
    EXPECT_EQ(stopped.status, 75) << stopped.output;
    EXPECT_THAT(stopped.output, HasSubstr("stopped after step"));
    EXPECT_EQ(checkpoints_of(run).size(), 1u);
  }
}

}  // namespace
}  // namespace mica::test
