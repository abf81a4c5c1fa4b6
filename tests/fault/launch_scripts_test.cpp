// SPDX-License-Identifier: Apache-2.0
// scripts/launch: what the launchers are given, that signals become saves, and that a run which was stopped is queued again. Where
// the launcher or the batch system is not asked for what it does itself, a program of its name stands for it.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

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

/// Notes its name and each argument in brackets; apart from them, the variables that -x names.
constexpr const char* kNote =
    "{ printf '%s' \"${0##*/}\"; last=; for each in \"$@\"; do\n"
    "    if [[ $last == -x ]]; then echo \"$each=${!each}\" >&3; elif [[ $each != -x ]]; then printf ' [%s]' \"$each\"; fi\n"
    "    last=$each\n"
    "  done; echo; } >> \"$CALLS\" 3>> \"$CALLS.variables\"\n";

constexpr const char* kModel = "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n";

class LaunchScripts : public ::testing::Test {
 protected:
  LaunchScripts() { fs::create_directories(folder_ / "bin"); }

  /// A program of this name comes first in the PATH.
  void stand_in(const std::string& name, const std::string& script) const {
    write_text(folder_ / ("bin/" + name), "#!/bin/bash\n" + script);
    fs::permissions(folder_ / ("bin/" + name), fs::perms::owner_all);
  }
  [[nodiscard]] static std::string script(const std::string& name) { return test::source_folder() + "/scripts/launch/" + name; }
  [[nodiscard]] std::map<std::string, std::string> with(std::map<std::string, std::string> environment) const {
    environment["PATH"] = folder_ / "bin:/usr/local/bin:/usr/bin:/bin";
    environment["CALLS"] = folder_ / "calls";
    return environment;
  }
  [[nodiscard]] Finished launch(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) const {
    for (const char* name : {"calls", "calls.variables"}) fs::remove(folder_ / name);
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
    EXPECT_THAT(seen.error_lines(), ElementsAre(HasSubstr(says))) << seen.output;
  }

  TemporaryFolder folder_;
};

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
  stand_in("nvidia-smi", "[ \"$*\" = --list-gpus ] && printf 'GPU 0: a\\nGPU 1: b\\n'\n");
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
                                                       {"FIGURE", "1"},
                                                       {"MY_LD_LIBRARY_PATH", "1"},
                                                       {"MY_NCCL_NET", "1"}};
  for (const char* name : {"mpirun-cpu.sh", "mpirun-gpu.sh"}) {
    EXPECT_EQ(launch({script(name), "x.cfg"}, environment).status, 0);
    const std::vector<std::string> seen = variables();
    EXPECT_THAT(seen, IsSupersetOf({"NCCL_NET=a b", "UCX_TLS=rc,x", "FI_PROVIDER=efa", "CUDA_CACHE_PATH=/c", "MICA_ISA=avx2",
                                    "LD_LIBRARY_PATH=/l:/m", "OMP_PROC_BIND=true"}));
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), seen.size()) << "one is given twice";
    EXPECT_THAT(seen, Each(ContainsRegex("^(MICA|OMP|NCCL|UCX|FI|CUDA)_|^LD_LIBRARY_PATH=")));
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

/// As Slurm starts it: a copy in its spool folder, started where sbatch was.
class SlurmScripts : public LaunchScripts, public ::testing::WithParamInterface<const char*> {
 protected:
  SlurmScripts() {
    fs::create_directories(folder_ / "spool");
    fs::copy_file(script(GetParam()), folder_ / "spool/slurm_script");
    say_of_job("JobState=RUNNING Reason=None");
  }
  /// scontrol, which notes requeues and shows the job, submitted from scripts/launch, in this state.
  void say_of_job(const std::string& state) const {
    stand_in("scontrol", "[ \"$1\" = show ] || " + std::string(kNote) + "[ \"$1\" = show ] && printf '   " + state +
                             "\\n   Command=" + script(GetParam()) + " my run.cfg\\n' || true\n");
  }
  /// srun: what it says of its plugins, of nodes that answer `true`, and how a step ends. As in Slurm, after sbatch --export=NONE a
  /// step has no PATH unless srun is told otherwise.
  void stand_in_srun(const std::string& step) const {
    stand_in("srun",
             "case \"$*\" in\n"
             "--mpi=list) printf 'MPI plugin types are...\\n%s\\n' \"${PLUGINS-none pmix pmi2}\" | tr ' ' '\\n'; exit ;;\n"
             "*--export=ALL*) ;;\n"
             "*) [ \"${SLURM_EXPORT_ENV:-ALL}\" = ALL ] || PATH= ;;\nesac\n"
             "case \"$*\" in *true) type -P \"${@: -1}\" >&2 && exit ${NODES_STATUS:-0}; exit 1 ;; esac\n" +
                 step);
  }
  [[nodiscard]] static bool is_gpu() { return std::string(GetParam()).find("gpu") != std::string::npos; }
  [[nodiscard]] Finished job(const std::vector<std::string>& arguments, std::map<std::string, std::string> environment = {}) const {
    std::vector<std::string> command{"/bin/sh", "-c", "cd '" + folder_.path() + "' && exec bash spool/slurm_script \"$@\"", "sh"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    environment.insert({{"SLURM_CPUS_PER_TASK", "4"},
                        {"SLURM_JOB_ID", "77"},
                        {"SLURM_JOB_NUM_NODES", "2"},
                        {"SLURM_NTASKS", "6"},
                        {"MICA_BIN", test::program_folder()}});
    return launch(command, environment);
  }
};

TEST_P(SlurmScripts, SrunIsGivenAllAndStatus75Requeues) {
  stand_in_srun(std::string(kNote) + "echo \"threads $OMP_NUM_THREADS\"\nexit $STATUS\n");
  const std::string srun = std::string("srun [--mpi=pmix] [--export=ALL] [--wait=660] [--cpus-per-task=4] ") +
                           (is_gpu() ? "[--gpu-bind=none] " : "") + "[--cpu-bind=cores] [" + program("mica-train") +
                           "] [my run.cfg] [--mesh.device=" + (is_gpu() ? "cuda" : "cpu") + "] [--train.steps=5] [--run.name=a b]";
  for (const std::string status : {"0", "2", "3", "137", "75"}) {
    const Finished seen = job({"my run.cfg", "--train.steps=5", "--run.name=a b"}, {{"STATUS", status}, {"OMP_NUM_THREADS", "3"}});
    EXPECT_EQ(std::to_string(seen.status), status) << seen.output;
    EXPECT_THAT(seen.output, HasSubstr("threads 4"));
    if (status == "75") {
      EXPECT_THAT(calls(), ElementsAre(srun, "scontrol [requeue] [77]"));
    } else {
      EXPECT_THAT(calls(), ElementsAre(srun));
    }
  }
}

// The id of one of an array's tasks means all of them to Slurm.
TEST_P(SlurmScripts, OfAnArrayOneTaskIsQueuedAgain) {
  stand_in_srun("exit 75\n");
  EXPECT_EQ(job({"x.cfg"}, {{"SLURM_ARRAY_JOB_ID", "77"}, {"SLURM_ARRAY_TASK_ID", "3"}}).status, 75);
  EXPECT_THAT(calls(), ElementsAre("scontrol [requeue] [77_3]"));
}

TEST_P(SlurmScripts, ALostNodeRequeuesAndAMistakeDoesNot) {
  stand_in_srun("exit $STATUS\n");
  for (const std::string status : {"0", "2", "1", "3", "137"}) {
    const Finished seen = job({"x.cfg"}, {{"STATUS", status}, {"NODES_STATUS", "1"}});
    EXPECT_EQ(std::to_string(seen.status), status) << seen.output;
    if (status == "0" || status == "2") {
      EXPECT_THAT(calls(), IsEmpty()) << status;
    } else {
      EXPECT_THAT(calls(), ElementsAre("scontrol [requeue] [77]")) << status;
      EXPECT_THAT(seen.output, HasSubstr("status " + status + ", and not all nodes answer"));
    }
    // A killed rank on nodes that are up: it may be killed again.
    EXPECT_EQ(std::to_string(job({"x.cfg"}, {{"STATUS", status}, {"NODES_STATUS", "0"}}).status), status);
    EXPECT_THAT(calls(), IsEmpty()) << status;
  }
}

TEST_P(SlurmScripts, ACrashAtTheStartIsFollowedByOneMoreStart) {
  stand_in_srun(std::string(kNote) + "[ \"$(wc -l < \"$CALLS\")\" -gt \"$CRASHES\" ] || kill -SEGV $$\n");
  const auto launches = [&](std::map<std::string, std::string> environment, int status) {
    const Finished seen = job({"x.cfg"}, std::move(environment));
    EXPECT_EQ(seen.status, status) << seen.output;
    EXPECT_EQ(seen.output.find("starting once more") != std::string::npos, calls().size() == 2) << seen.output;
    return calls().size();
  };
  EXPECT_EQ(launches({{"CRASHES", "1"}}, 0), 2u);
  EXPECT_EQ(launches({{"CRASHES", "2"}}, 139), 2u);
  EXPECT_EQ(launches({{"CRASHES", "1"}, {"SECONDS", "400"}}, 139), 1u) << "the script's own clock: later than five minutes";
  (void)job({"x.cfg"}, {{"CRASHES", "1"}, {"NODES_STATUS", "1"}});
  EXPECT_THAT(calls(), ElementsAre(HasSubstr("srun "), "scontrol [requeue] [77]"));
}

// sbatch --export=NONE also means each srun in the job, and that of mpirun.
TEST_P(SlurmScripts, RanksKeepTheEnvironmentWithExportNone) {
  stand_in_srun("echo \"path $PATH\"\nexit 3\n");
  const Finished seen = job({"x.cfg"}, {{"SLURM_EXPORT_ENV", "NONE"}});
  EXPECT_EQ(seen.status, 3) << seen.output;
  EXPECT_THAT(seen.output, HasSubstr("path " + (folder_ / "bin")));
  EXPECT_THAT(calls(), IsEmpty()) << "all nodes answer";
  stand_in("mpirun", "echo \"exported $SLURM_EXPORT_ENV\"\n");
  EXPECT_THAT(job({"x.cfg"}, {{"SLURM_EXPORT_ENV", "NONE"}, {"MICA_LAUNCHER", "mpirun"}}).output, HasSubstr("exported ALL"));
}

TEST_P(SlurmScripts, OnlyAJobThatSlurmDoesNotEndIsQueuedAgain) {
  stand_in_srun("exit 75\n");
  say_of_job("JobState=COMPLETING Reason=None");  // scancel
  EXPECT_THAT(job({"x.cfg"}).output, HasSubstr("not queued again"));
  EXPECT_THAT(calls(), IsEmpty());
  say_of_job("JobState=PENDING Reason=BeginTime");  // Slurm has seen that a node is lost
  EXPECT_THAT(job({"x.cfg"}).output, Not(HasSubstr("queued again")));
  EXPECT_THAT(calls(), IsEmpty());
  say_of_job("JobState=COMPLETING Reason=TimeLimit");
  EXPECT_EQ(job({"x.cfg"}).status, 75);
  EXPECT_THAT(calls(), ElementsAre("scontrol [requeue] [77]"));
}

TEST_P(SlurmScripts, ASiteWithoutRequeueIsTold) {
  stand_in_srun("exit 75\n");
  stand_in("scontrol", "[ \"$1\" = show ] || exit 1\nprintf 'JobState=RUNNING\\n   Command=" + script(GetParam()) + "\\n'\n");
  const Finished seen = job({"x.cfg"});
  EXPECT_EQ(seen.status, 75);
  EXPECT_THAT(seen.output, HasSubstr("cannot be queued again here: submit the same command"));
}

/// mica-train that was built with another MPI.
TEST_P(SlurmScripts, ThePluginFitsTheMpiLibrary) {
  stand_in_srun(kNote);
  stand_in("mpirun", kNote);
  const auto with_library = [&](const std::string& library, std::map<std::string, std::string> environment) {
    stand_in("mica-train", "echo 'mica 0.1.0\n  " + library + "'\n");
    environment.insert({{"MICA_BIN", folder_ / "bin"}});
    return job({"x.cfg"}, environment);
  };
  const auto expect_plugin = [&](const std::string& plugin) {
    EXPECT_THAT(calls(), ElementsAre(HasSubstr("srun [--mpi=" + plugin + "] "))) << plugin;
  };
  (void)with_library("Open MPI v4.1.4", {{"PLUGINS", "none cray_shasta pmi2 pmix"}});
  expect_plugin("pmix");
  (void)with_library("MPICH 4.0.2", {{"PLUGINS", "none pmi2 pmix"}});
  expect_plugin("pmi2");
  (void)with_library("MPICH 4.2", {{"PLUGINS", "none pmix"}});
  expect_plugin("pmix");
  (void)with_library("CRAY MPICH version 8.1", {{"PLUGINS", "none cray_shasta"}});
  expect_plugin("cray_shasta");
  (void)with_library("Open MPI v4.1.4", {{"PLUGINS", "none pmi2"}, {"SLURM_MPI_TYPE", "pmi2"}});
  expect_plugin("pmi2");
  // Open MPI without PMIx: mpirun knows Slurm's hosts.
  const std::string mpirun = is_gpu() ? "mpirun [-np] [6] [--map-by] [ppr:3:node] " : "mpirun [-np] [6] [--map-by] [slot:PE=4] ";
  const Finished told = with_library("Open MPI v4.1.4", {{"PLUGINS", "none pmi2 cray_shasta"}});
  EXPECT_THAT(told.output, HasSubstr("no plugin pmix, which Open MPI needs: starting with mpirun"));
  EXPECT_THAT(calls(), ElementsAre(HasSubstr(mpirun)));
  (void)with_library("Open MPI v4.1.4", {{"MICA_LAUNCHER", "mpirun"}});
  EXPECT_THAT(calls(), ElementsAre(HasSubstr(mpirun)));
  expect_refused(with_library("Open MPI v4.1.4", {{"PLUGINS", "none pmi2"}, {"MICA_LAUNCHER", "srun"}}), "no plugin pmix");
  expect_refused(with_library("MPICH 4.0.2", {{"PLUGINS", "none"}}), "neither pmi2 nor pmix");
  expect_refused(with_library("Open MPI v4.1.4", {{"MICA_LAUNCHER", "ssh"}}), "expected srun or mpirun");
}

/// A step that tells of its signals, as ranks do.
TEST_P(SlurmScripts, SignalsToTheScriptBecomeARequestToSave) {
  stand_in_srun(
      "trap 'echo got USR1; exit 75' USR1\ntrap 'echo got TERM; exit 9' TERM\necho runs\nuntil ((SECONDS > 30)); do sleep 0.02; done\n");
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM}) {
    Child child({"/bin/bash", folder_ / "spool/slurm_script", "x.cfg"},
                with({{"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NUM_NODES", "2"}, {"MICA_BIN", test::program_folder()}}));
    ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
    ASSERT_EQ(::kill(child.pid(), signal), 0);
    const Finished seen = child.wait(20);
    EXPECT_EQ(seen.status, 75) << seen.output;
    EXPECT_THAT(seen.output, HasSubstr("got USR1"));
    EXPECT_THAT(seen.output, Not(HasSubstr("got TERM")));
  }
}

TEST_P(SlurmScripts, ItSaysWhatIsMissing) {
  stand_in_srun("exit 0\n");
  expect_refused(launch({"/bin/bash", script(GetParam()), "x.cfg"}, {{"SLURM_JOB_ID", ""}}), "this is no Slurm job: sbatch");
  expect_refused(job({"x.cfg"}, {{"MICA_BIN", folder_ / "nowhere"}}), "no mica-train in " + (folder_ / "nowhere"));
  // A copy of one's own, submitted from elsewhere.
  stand_in("scontrol", "echo '   Command=(null)'\n");
  expect_refused(job({"x.cfg"}), "slurm_job.sh is neither in");
}

// A requeue needs --requeue. "B:" is the script, which passes the signal on early enough to save, whatever started the ranks.
TEST_P(SlurmScripts, TheHeaderAsksForASignalInTimeARequeueAndALogThatGrows) {
  const std::string text = read_text(script(GetParam()));
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --signal=B:USR1@120\n"));
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --requeue\n"));
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --open-mode=append\n"));
  EXPECT_LT(text.find("#SBATCH --open-mode"), text.find("\nset -")) << "Slurm reads no further than the first command";
}

INSTANTIATE_TEST_SUITE_P(Each, SlurmScripts, ::testing::Values("slurm-cpu.sbatch", "slurm-gpu.sbatch"),
                         [](const auto& info) { return std::string(info.param).substr(6, 3); });

using SlurmJob = SlurmScripts;

// The time limit is shorter than a step, so that each start of the job does one: two are queued again, the third ends the run.
TEST_P(SlurmJob, GoesOnUntilTheRunIsDone) {
  stand_in_srun("while [ \"${1#-}\" != \"$1\" ]; do shift; done\nexec \"$@\"\n");  // one rank
  write_tokens(folder_ / "tokens.bin", 4000);
  write_text(folder_ / "run.cfg", std::string(kModel) +
                                      "[data]\ntrain = tokens.bin\n[train]\nsteps = 3\nmicro_batch = 2\nseq_len = 16\n"
                                      "log_interval = 1\nmax_hours = 1e-9\n[run]\ndir = run\n");
  for (const std::size_t step : {1u, 2u, 3u}) {
    const Finished seen = job({"run.cfg", "--mesh.threads=1"}, {{"SLURM_NTASKS", "1"}, {"SLURM_JOB_NUM_NODES", "1"}});
    EXPECT_EQ(seen.status, step < 3 ? 75 : 0) << seen.output;
    EXPECT_EQ(step_lines(folder_ / "run").size(), step);
    if (step < 3) {
      EXPECT_THAT(calls(), ElementsAre("scontrol [requeue] [77]"));
    } else {
      EXPECT_THAT(calls(), IsEmpty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, SlurmJob, ::testing::Values("slurm-cpu.sbatch"));

}  // namespace
}  // namespace mica::test
