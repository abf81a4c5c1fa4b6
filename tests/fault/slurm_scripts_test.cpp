// SPDX-License-Identifier: Apache-2.0
// scripts/launch/slurm-*.sbatch: what srun is given, that signals become saves, and which jobs are queued again.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/launch_scripts.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
    stand_in("scontrol", "[ \"$2\" != node ] || { cat '" + (folder_ / "node") + "' 2>/dev/null; exit; }\n[ \"$1\" = show ] || " +
                             std::string(kNote) + "[ \"$1\" = show ] && printf '   " + state + "\\n   Command=" + script(GetParam()) +
                             " my run.cfg\\n' || true\n");
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

// Its controller may be busy: the first three questions fail.
TEST_P(SlurmScripts, SlurmIsAskedAgain) {
  stand_in_srun("exit 75\n");
  stand_in("sleep", "exit 0\n");
  const auto answer_from = [&](int first) {
    write_text(folder_ / "asked", "");
    stand_in("scontrol", "echo >> '" + (folder_ / "asked") + "'; (($(wc -l < '" + (folder_ / "asked") + "') >= " + std::to_string(first) +
                             ")) || exit 1\n[ \"$1\" = show ] || " + kNote +
                             "[ \"$1\" = show ] && printf '   JobState=RUNNING Reason=None\\n' || true\n");
  };
  fs::create_directories(folder_ / "scripts");
  fs::create_directory_symlink(test::source_folder() + "/scripts/launch", folder_ / "scripts/launch");
  answer_from(4);
  const Finished seen = job({"x.cfg"});
  EXPECT_EQ(seen.status, 75) << seen.output;
  EXPECT_THAT(calls(), ElementsAre("scontrol [requeue] [77]"));
  answer_from(1000);
  const Finished silent = job({"x.cfg"});
  EXPECT_EQ(silent.status, 75) << silent.output;
  EXPECT_THAT(silent.output, HasSubstr("scontrol does not tell this job's state, so it is not queued again here"));
}

// While the script chooses a launcher: the job is queued again, and no step starts.
TEST_P(SlurmScripts, ASignalBeforeTheStepIsARequest) {
  stand_in("srun", std::string(kNote) + "[ \"$*\" != --mpi=list ] || { echo pmix; touch '" + (folder_ / "asked") + "'; sleep 1; }\n");
  Child child({"/bin/bash", folder_ / "spool/slurm_script", "x.cfg"},
              with({{"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NUM_NODES", "2"}, {"MICA_BIN", test::program_folder()}}));
  for (int i = 0; i < 1000 && !fs::exists(folder_ / "asked"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_EQ(::kill(child.pid(), SIGUSR1), 0);
  const Finished seen = child.wait(20);
  EXPECT_EQ(seen.status, 75) << seen.output;
  EXPECT_THAT(calls(), ElementsAre("srun [--mpi=list]", "scontrol [requeue] [77]"));
}

TEST_P(SlurmScripts, ASiteWithoutRequeueIsTold) {
  stand_in_srun("exit 75\n");
  stand_in("sleep", "exit 0\n");
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

TEST_P(SlurmScripts, MpirunCountsCoresAndTasks) {
  stand_in_srun("exit 1\n");
  stand_in("mpirun", "echo \"threads $OMP_NUM_THREADS\"\n" + std::string(kNote));
  const auto with_mpirun = [&](std::map<std::string, std::string> environment) {
    environment.insert({"MICA_LAUNCHER", "mpirun"});
    return job({"x.cfg"}, environment).output;
  };
  const auto expect_cores = [&](const std::string& cores) {
    const std::string as = is_gpu() ? "[--bind-to] [none]" : "[--map-by] [slot:PE=" + cores + "] [--bind-to] [core]";
    EXPECT_THAT(calls(), ElementsAre(HasSubstr(as))) << cores;
  };
  write_text(folder_ / "node",
             "NodeName=n0 Arch=x86_64 CoresPerSocket=4\n   CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.1\n   Sockets=2 Boards=1\n");
  EXPECT_THAT(with_mpirun({}), is_gpu() ? HasSubstr("threads") : HasSubstr("threads 4"));
  expect_cores("2");
  (void)with_mpirun({{"SLURM_CPUS_PER_TASK", "1"}});
  expect_cores("1");
  (void)with_mpirun({{"SLURM_HINT", "nomultithread"}});
  expect_cores("4");
  (void)with_mpirun({{"SLURM_THREADS_PER_CORE", "1"}});
  expect_cores("4");
  write_text(folder_ / "node", "NodeName=n0 CoresPerSocket=4 ThreadsPerCore=2\n   CPUTot=8\n   Sockets=2\n");  // its CPUs are cores
  (void)with_mpirun({});
  expect_cores("4");
  // sbatch --nodes=2, and no word of tasks.
  (void)launch({"/bin/bash", script(GetParam()), "x.cfg"},
               {{"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NUM_NODES", "2"}, {"MICA_LAUNCHER", "mpirun"}, {"MICA_BIN", test::program_folder()}});
  EXPECT_THAT(calls(), ElementsAre(HasSubstr("mpirun [-np] [2] ")));
}

TEST_P(SlurmScripts, AHeterogeneousJobIsRefused) {
  stand_in_srun("exit 0\n");
  expect_refused(job({"x.cfg"}, {{"SLURM_HET_SIZE", "3"}}), "heterogeneous job of 3 components");
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
