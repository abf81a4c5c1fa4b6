// SPDX-License-Identifier: Apache-2.0
// mica-train with a GPU, as users start it, beside the same run on the CPU; on emulated GPUs.
#include "fault/support/training.hpp"

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 6;

class GpuTraining : public ::testing::Test {
 protected:
  GpuTraining() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(config_,
               "[model]\ntype = gpt2\nlayers = 2\nheads = 3\nwidth = 24\nvocab_size = 256\ncontext = 32\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = " +
                   std::to_string(kSteps) +
                   "\nmicro_batch = 2\nseq_len = 16\nlog_interval = 1\n"
                   "[optim]\nwarmup_steps = 1\nlr = 1e-3\n[checkpoint]\ninterval = 3\nkeep = 0\n");
  }
  /// The program that sees emulated GPUs in place of mica-train; everything else as users start it.
  Finished train(int num_ranks, const std::string& run, std::vector<std::string> flags) {
    flags.push_back("--run.dir=" + (folder_ / run));
    std::vector<std::string> command = training(num_ranks, config_, flags);
    for (std::string& part : command) {
      if (part == program("mica-train")) part = MICA_EMULATED_TRAIN;
    }
    return test::run(command, 60);
  }
  void expect_same_losses(const std::string& run, const std::string& expected, double tolerance) const {
    const std::vector<StepLine> here = step_lines(folder_ / run), there = step_lines(folder_ / expected);
    ASSERT_EQ(here.size(), static_cast<std::size_t>(kSteps)) << run;
    ASSERT_EQ(there.size(), here.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      EXPECT_NEAR(here[i].loss, there[i].loss, tolerance * there[i].loss) << run << " step " << i + 1;
      EXPECT_NEAR(here[i].grad_norm, there[i].grad_norm, 30 * tolerance * there[i].grad_norm) << run << " step " << i + 1;
    }
  }

  TemporaryFolder folder_;
  std::string config_ = folder_ / "run.cfg";
};

TEST_F(GpuTraining, LossesAreTheCpus) {
  struct Case {
    std::string dtype;
    double tolerance;
  };
  for (const Case& c : {Case{"fp32", 1e-5}, Case{"bf16", 1e-3}}) {
    const std::string dtype = "--fsdp.param_dtype=" + c.dtype;
    for (const std::string device : {"cpu", "cuda"}) {
      const Finished run = train(1, device + c.dtype, {dtype, "--mesh.device=" + device});
      ASSERT_EQ(run.status, 0) << run.output;
      EXPECT_EQ(run.output.find("NCCL 2.28.9, large buffers registered") != std::string::npos, device == "cuda") << run.output;
    }
    expect_same_losses("cuda" + c.dtype, "cpu" + c.dtype, c.tolerance);
  }
}

/// 256 logits in bf16: a loss errs by a fraction of their rounding.
TEST_F(GpuTraining, LogitsMayBeNarrow) {
  for (const std::string f32 : {"true", "false"}) {
    const Finished run = train(1, "f32_" + f32, {"--fsdp.param_dtype=bf16", "--mesh.device=cuda", "--train.f32_logits=" + f32});
    ASSERT_EQ(run.status, 0) << run.output;
  }
  expect_same_losses("f32_false", "f32_true", 2e-3);
  EXPECT_NE(step_lines(folder_ / "f32_false").back().loss, step_lines(folder_ / "f32_true").back().loss);
}

TEST_F(GpuTraining, RanksThatShareAGpuTrainAsOnesOfTheCpuAndGoOnThere) {
  for (const int ranks : {2, 4}) {
    const std::string n = std::to_string(ranks);
    const Finished cpu = train(ranks, "cpu" + n, {"--mesh.device=cpu"});
    ASSERT_EQ(cpu.status, 0) << cpu.output;
    const Finished gpu =
        train(ranks, "gpu" + n, {"--mesh.device=cuda", "--mesh.backend=staged", "--train.steps=3", "--optim.schedule=constant"});
    ASSERT_EQ(gpu.status, 0) << gpu.output;
    EXPECT_THAT(gpu.output, HasSubstr("staged over MPI"));
    const Finished constant = train(ranks, "constant" + n, {"--mesh.device=cpu", "--optim.schedule=constant"});
    ASSERT_EQ(constant.status, 0) << constant.output;
    // Begun on the GPU, ended on the CPU.
    const Finished on_cpu = train(ranks, "gpu" + n, {"--mesh.device=cpu", "--optim.schedule=constant"});
    ASSERT_EQ(on_cpu.status, 0) << on_cpu.output;
    expect_same_losses("gpu" + n, "constant" + n, 1e-5);
  }
}

// Products that apply GELUs see them before they are rounded; whatever is made again comes from rounded numbers.
TEST_F(GpuTraining, OutputsMadeAgainHaveTheSameBitsWhereGelusStandApart) {
  for (const std::string deterministic : {"true", "false"}) {
    std::map<std::string, double> kib;  // the measured peak
    for (const std::string recompute : {"none", "cheap"}) {
      const Finished run = train(1, recompute + deterministic,
                                 {"--mesh.device=cuda", "--fsdp.param_dtype=bf16", "--train.micro_batch=8", "--fsdp.recompute=" + recompute,
                                  "--train.deterministic=" + deterministic});
      ASSERT_EQ(run.status, 0) << run.output;
      std::smatch peak;
      ASSERT_TRUE(std::regex_search(run.output, peak, std::regex("peak of a rank (.*) KiB measured"))) << run.output;
      kib[recompute] = std::stod(peak[1]);
    }
    EXPECT_LT(kib["cheap"], kib["none"]);
    expect_same_losses("cheap" + deterministic, "none" + deterministic, deterministic == "true" ? 0 : 1e-3);
  }
}

// The copies that are written in the background are no memory of the GPU.
TEST_F(GpuTraining, SavesInTheBackgroundTakeNoMemoryOfTheGpu) {
  const auto planned = [&](const std::string& async) {
    const Finished run = train(1, "async-" + async, {"--mesh.device=cuda", "--checkpoint.interval=2", "--checkpoint.async=" + async});
    EXPECT_EQ(run.status, 0) << run.output;
    std::smatch peak;
    const std::regex line("peak of a rank (.*) measured, (.*) planned");
    EXPECT_TRUE(std::regex_search(run.output, peak, line)) << run.output;
    EXPECT_EQ(peak[1], peak[2]) << async;
    return peak[2].str();
  };
  EXPECT_EQ(planned("true"), planned("false"));
}

TEST_F(GpuTraining, APlainPoolChangesNothingAndIsNamedAtTheStart) {
  ASSERT_EQ(train(1, "arena", {"--mesh.device=cuda"}).status, 0);
  ::setenv("MICA_GPU_POOL", "plain", 1);
  const Finished plain = train(1, "plain", {"--mesh.device=cuda"});
  ::setenv("MICA_GPU_POOL", "pages", 1);
  const Finished unknown = train(1, "unknown", {"--mesh.device=cuda"});
  ::unsetenv("MICA_GPU_POOL");
  ASSERT_EQ(plain.status, 0) << plain.output;
  EXPECT_THAT(plain.output, HasSubstr("a cudaMalloc for every buffer (MICA_GPU_POOL=plain, slow)"));
  expect_same_losses("plain", "arena", 0);
  EXPECT_EQ(unknown.status, 2) << unknown.output;
  ASSERT_EQ(unknown.error_lines().size(), 1u) << unknown.output;
  EXPECT_THAT(unknown.error_lines()[0], HasSubstr("MICA_GPU_POOL=pages"));
}

// A width that 8 does not divide, in products that are large enough to be worth a word.
TEST_F(GpuTraining, SlowPathsAreToldOnceAndNotWhereTheyWereAskedFor) {
  const auto with = [&](const std::string& run, const std::string& key) {
    return train(1, run,
                 {"--mesh.device=cuda", "--model.layers=1", "--model.heads=5", "--model.width=105", "--train.micro_batch=12",
                  "--train.seq_len=32", "--optim.warmup_steps=0", "--fsdp.param_dtype=bf16", key});
  };
  const Finished told = with("slow", "--train.steps=2");
  ASSERT_EQ(told.status, 0) << told.output;
  const std::string line = "slow path: a GELU not fused with its product (linear_gelu, [384,105] x [420,105]^T bf16): cuBLASLt";
  ASSERT_THAT(told.output, HasSubstr(line));
  EXPECT_THAT(told.output, HasSubstr("only if the width is a multiple of 8; it is 420"));
  EXPECT_EQ(told.output.find(line, told.output.find(line) + 1), std::string::npos) << told.output;
  ::setenv("MICA_GPU_EPILOGUES", "off", 1);
  const Finished silent = with("off", "--train.steps=1");
  ::unsetenv("MICA_GPU_EPILOGUES");
  ASSERT_EQ(silent.status, 0) << silent.output;
  EXPECT_EQ(silent.output.find("slow path"), std::string::npos) << silent.output;
  EXPECT_THAT(silent.output, HasSubstr("without epilogues (MICA_GPU_EPILOGUES=off)"));
}

TEST_F(GpuTraining, WhatCannotBeIsRefusedOnce) {
  struct Case {
    std::vector<std::string> flags;
    int ranks;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases{
      {{"--mesh.device=cuda", "--mesh.backend=nccl"}, 2, {"mesh.backend = nccl", "one GPU per rank", "2 ranks", "staged"}},
      {{"--mesh.device=cuda", "--mesh.backend=mpi"}, 1, {"mesh.backend = mpi", "memory of the CPU", "GPUs"}},
      {{"--mesh.device=cuda", "--model.width=3072", "--model.layers=8"},
       1,
       {"of GPU memory per rank", "Emulated GPU", "256.0 MiB", "fsdp.recompute=cheap or fsdp.activation_checkpointing=block"}},
      // One alone would find room.
      {{"--mesh.device=cuda", "--mesh.backend=staged", "--model.width=768"},
       2,
       {"of GPU memory per rank", "with 2 ranks on one", "256.0 MiB"}}};
  for (const Case& c : cases) {
    const Finished run = train(c.ranks, "refused", c.flags);
    EXPECT_EQ(run.status, 2) << run.output;
    ASSERT_EQ(run.error_lines().size(), 1u) << run.output;
    for (const std::string& part : c.says) EXPECT_THAT(run.error_lines()[0], HasSubstr(part));
  }
}

}  // namespace
}  // namespace mica::test
