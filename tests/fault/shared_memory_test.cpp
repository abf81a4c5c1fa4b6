// SPDX-License-Identifier: Apache-2.0
// mesh.backend=shared as users run it: the bits of mesh.backend=mpi, also where one goes on for the other; a killed rank; a small
// /dev/shm.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;

class SharedMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_tokens(folder_ / "val.bin", 2'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 3\nheads = 2\nwidth = 34\nvocab_size = 256\ncontext = 32\ndropout = 0.1\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") + "\nval = " + (folder_ / "val.bin") +
                   "\n"
                   "[train]\nsteps = 8\nmicro_batch = 1\nglobal_batch = 8\nseq_len = 32\nlog_interval = 1\n"
                   "eval_interval = 2\neval_batches = 1\n"
                   "[optim]\nlr = 0.01\nschedule = constant\nwarmup_steps = 2\ngrad_clip = 0.5\n[checkpoint]\ninterval = 4\nkeep = 0\n");
  }
  std::string run_folder(const std::string& name) { return folder_ / name; }
  std::vector<std::string> command(const std::string& name, int num_ranks, std::vector<std::string> flags) {
    flags.push_back("--run.dir=" + run_folder(name));
    return training(num_ranks, folder_ / "run.cfg", flags);
  }
  std::string train(const std::string& name, int num_ranks, const std::vector<std::string>& flags) {
    const Finished run = test::run(command(name, num_ranks, flags));
    EXPECT_EQ(run.status, 0) << run.output;
    return run.output;
  }
  void expect_same(const std::string& name, const std::string& other) {
    EXPECT_EQ(step_lines(run_folder(name)), step_lines(run_folder(other))) << name;
    ASSERT_EQ(checkpoints_of(run_folder(name)), checkpoints_of(run_folder(other)));
    const std::string last = "/checkpoints/" + checkpoints_of(run_folder(name)).back();
    const Finished diff = test::run({program("mica-inspect"), "diff", run_folder(name) + last, run_folder(other) + last});
    EXPECT_EQ(diff.status, 0) << name << ": " << diff.output;
  }
  static std::vector<std::string> segments_of(const std::vector<pid_t>& pids) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      const std::string file = entry.path().filename();
      for (const pid_t pid : pids) {
        if (file.starts_with("mica-" + std::to_string(pid) + "-")) found.push_back(file);
      }
    }
    return found;
  }

  TemporaryFolder folder_;
};

TEST_F(SharedMemory, GivesTheBitsOfMpi) {
  const std::vector<std::pair<int, std::vector<std::string>>> ways{
      {2, {}},
      {2, {"--mesh.streams=threaded", "--fsdp.forward_prefetch=true", "--train.gradient_sync=no_sync"}},
      {3, {"--fsdp.strategy=shard_grad_op", "--train.global_batch=6"}},
      {4, {"--mesh.streams=threaded"}},
      {4, {"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"}},
      {2, {"--optim.in_backward=true", "--optim.grad_clip=0", "--train.gradient_sync=no_sync"}},
  };
  int number = 0;
  for (auto [ranks, flags] : ways) {
    const std::string mpi = "mpi" + std::to_string(++number), shared = "shared" + std::to_string(number);
    flags.push_back("--mesh.backend=mpi");
    EXPECT_THAT(train(mpi, ranks, flags), ::testing::HasSubstr("all_gather"));
    flags.back() = "--mesh.backend=shared";
    const std::string output = train(shared, ranks, flags);
    EXPECT_EQ(step_lines(run_folder(shared)).size(), 8U);
    EXPECT_THAT(output, ::testing::HasSubstr("4 of 4 units"));
    EXPECT_THAT(output, ::testing::Not(::testing::HasSubstr("all_gather"))) << "the start-up table of a step's traffic";
    expect_same(shared, mpi);
  }
}

TEST_F(SharedMemory, EitherBackendGoesOnForTheOther) {
  train("undisturbed", 2, {"--mesh.backend=mpi"});
  train("to_mpi", 2, {"--mesh.backend=shared", "--train.steps=4"});
  train("to_mpi", 2, {"--mesh.backend=mpi"});
  expect_same("to_mpi", "undisturbed");
  train("to_shared", 2, {"--mesh.backend=mpi", "--train.steps=4"});
  train("to_shared", 2, {"--mesh.backend=shared"});
  expect_same("to_shared", "undisturbed");
}

TEST_F(SharedMemory, PageTablesCountAsMemoryOfTheNode) {
  const std::vector<std::string> large{"--model.layers=1000", "--model.width=16384", "--model.heads=16"};
  for (const std::string backend : {"mpi", "shared"}) {
    std::vector<std::string> flags = large;
    flags.push_back("--mesh.backend=" + backend);
    const Finished run = test::run(command("large", 2, flags));
    EXPECT_EQ(run.status, 2) << run.output;
    EXPECT_THAT(run.output, ::testing::HasSubstr("this run needs "));
    const auto says_tables = ::testing::HasSubstr("GiB of a rank's memory are page tables of what it shares");
    if (backend == "shared") {
      EXPECT_THAT(run.output, says_tables);
    } else {
      EXPECT_THAT(run.output, ::testing::Not(says_tables));
    }
  }
}

// One rank alone is killed: the launcher ends the job although the others wait in memory, and nothing of it is left.
TEST_F(SharedMemory, AKilledRankEndsTheJobAndLeavesNothing) {
  const std::vector<std::string> longer{"--train.steps=300", "--train.eval_interval=50", "--checkpoint.interval=150"};  // a kill hits it
  std::vector<std::string> flags = longer;
  flags.push_back("--mesh.backend=mpi");
  train("undisturbed", 2, flags);
  for (const std::string streams : {"inline", "threaded"}) {
    flags = longer;
    flags.insert(flags.end(), {"--mesh.backend=shared", "--mesh.streams=" + streams});
    Child child(command(streams, 2, flags));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_EQ(ranks.size(), 2U);
    while (step_lines(run_folder(streams)).size() < 20) {
      ASSERT_TRUE(child.is_running());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(segments_of(ranks), std::vector<std::string>{}) << "also while they run";
    ::kill(ranks[1], SIGKILL);
    const Finished killed = child.wait(30);
    EXPECT_FALSE(killed.is_timed_out) << killed.output;
    EXPECT_NE(killed.status, 0) << killed.output;
    EXPECT_TRUE(have_ended(ranks, 10));
    EXPECT_EQ(segments_of(ranks), std::vector<std::string>{});
    train(streams, 2, flags);
    expect_same(streams, "undisturbed");
  }
}

// A vocabulary of which ranks share the gradient: the sums are others than with a reduce-scatter, but always the same.
TEST_F(SharedMemory, AGradientThatIsWrittenInTurns) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    std::vector<std::string> flags{"--model.vocab_size=8200",  "--train.global_batch=6",  "--train.steps=40",
                                   "--checkpoint.interval=10", "--train.eval_interval=0", "--fsdp.param_dtype=" + dtype,
                                   "--mesh.backend=mpi"};
    train(dtype + "_mpi", 3, flags);
    flags.back() = "--mesh.backend=shared";
    train(dtype, 3, flags);
    const std::vector<StepLine> mpi = step_lines(run_folder(dtype + "_mpi")), shared = step_lines(run_folder(dtype));
    ASSERT_EQ(shared.size(), 40U);
    ASSERT_EQ(mpi.size(), 40U);
    EXPECT_EQ(shared[0].loss, mpi[0].loss);
    EXPECT_NE(shared, mpi) << "nothing was written in turns: the last bits are the same";
    for (std::size_t i = 0; i < 10; ++i) {
      EXPECT_NEAR(shared[i].loss, mpi[i].loss, (dtype == "fp32" ? 1e-5 : 1e-2) * mpi[i].loss) << dtype << ", step " << i + 1;
    }

    Child child(command(dtype + "_killed", 3, flags));
    const std::vector<pid_t> ranks = child.ranks(3);
    ASSERT_EQ(ranks.size(), 3U);
    while (step_lines(run_folder(dtype + "_killed")).size() < 15) {
      ASSERT_TRUE(child.is_running());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::kill(ranks[1], SIGKILL);
    EXPECT_FALSE(child.wait(30).is_timed_out);
    EXPECT_EQ(segments_of(ranks), std::vector<std::string>{});
    train(dtype + "_killed", 3, flags);
    expect_same(dtype + "_killed", dtype);
  }
}

// Some 50 MB of masters and 32 MB to share. (Open MPI's own memory goes elsewhere.)
const std::string kSmallDevShm =
    "mount -t tmpfs -o size=32m tmpfs /dev/shm || exit 99; export OMPI_MCA_btl_vader_backing_directory=/tmp; exec \"$@\"";
const std::vector<std::string> kLargerModel{"--model.width=512", "--model.layers=4", "--model.heads=8", "--train.steps=2"};

TEST_F(SharedMemory, ASmallDevShmIsOneErrorAtTheStart) {
  std::vector<std::string> flags = kLargerModel;
  flags.emplace_back("--mesh.backend=shared");
  const Finished run = test::run(in_mount_namespace(kSmallDevShm, command("small", 2, flags)));
  ASSERT_NE(run.status, 99) << "no mount namespace is possible\n" << run.output;
  EXPECT_EQ(run.status, 2) << run.output;
  ASSERT_EQ(run.error_lines().size(), 1U) << run.output;
  for (const std::string part :
       {"mesh.backend = shared keeps", "the 2 ranks of a node", "32.0 MiB of /dev/shm", "are free", "mesh.backend=mpi"}) {
    EXPECT_THAT(run.error_lines()[0], ::testing::HasSubstr(part));
  }
  EXPECT_FALSE(fs::exists(run_folder("small") + "/checkpoints"));
}

TEST_F(SharedMemory, AutoSharesWhereThereIsRoomAndSaysWhyNot) {
  std::vector<std::string> flags = kLargerModel;
  flags.emplace_back("--mesh.backend=mpi");
  train("mpi", 2, flags);
  flags.back() = "--mesh.backend=auto";
  EXPECT_THAT(train("auto", 2, flags), ::testing::HasSubstr("5 of 5 units keep parameters or gradients"));
  expect_same("mpi", "auto");
  const Finished small = test::run(in_mount_namespace(kSmallDevShm, command("small", 2, flags)));
  ASSERT_NE(small.status, 99) << "no mount namespace is possible\n" << small.output;
  EXPECT_EQ(small.status, 0) << small.output;
  EXPECT_THAT(small.output, ::testing::AllOf(::testing::HasSubstr("backend  mpi: mesh.backend = shared needs "),
                                             ::testing::HasSubstr("bytes of /dev/shm"), ::testing::Not(::testing::HasSubstr("warning"))));
  expect_same("mpi", "small");
}

TEST_F(SharedMemory, AutoSharesCastsThatStayForBackward) {
  for (const auto& [strategy, shared] : {std::pair{"full_shard", "1 of 4 units keep"}, {"shard_grad_op", "4 of 4 units keep"}}) {
    const std::string name(strategy);
    std::vector<std::string> flags{"--fsdp.param_dtype=bf16", "--fsdp.strategy=" + name, "--mesh.backend=mpi"};
    train("mpi_" + name, 2, flags);
    flags.back() = "--mesh.backend=auto";
    EXPECT_THAT(train("auto_" + name, 2, flags), ::testing::HasSubstr(shared));
    expect_same("mpi_" + name, "auto_" + name);
  }
}

TEST_F(SharedMemory, AutoSharesNothingWhereThatHasNoEffect) {
  for (const auto& [ranks, flag] :
       {std::pair{1, "--train.steps=2"}, {2, "--fsdp.sharding=per_parameter"}, {2, "--fsdp.strategy=no_shard"}}) {
    EXPECT_THAT(train(flag, ranks, {"--train.steps=2", flag}),
                ::testing::Not(::testing::AnyOf(::testing::HasSubstr("shared"), ::testing::HasSubstr("backend  "))));
  }
}

TEST_F(SharedMemory, NothingToShareIsSaid) {
  EXPECT_THAT(train("cut", 2, {"--mesh.backend=shared", "--fsdp.sharding=per_parameter", "--train.steps=2"}),
              ::testing::AllOf(::testing::HasSubstr("0 of 4 units"), ::testing::HasSubstr("has no effect here")));
  EXPECT_THAT(train("alone", 1, {"--mesh.backend=shared", "--train.steps=2"}), ::testing::HasSubstr("has no effect here"));
}

}  // namespace
}  // namespace mica::test
