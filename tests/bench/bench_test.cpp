// SPDX-License-Identifier: Apache-2.0
// mica-bench's subcommands: they run, and what they report fits together. No speeds are asserted.

#include <csignal>
#include <filesystem>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using Json = nlohmann::json;

Finished run_bench(int num_ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program("mica-bench"));
  return run(under_mpirun(num_ranks, arguments), 120);
}

std::vector<Json> json_lines(const Finished& finished) {
  std::vector<Json> rows;
  std::istringstream lines(finished.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{")) rows.push_back(Json::parse(line));
  }
  return rows;
}

/// Of many rows: without the table on standard error, which mpirun may put between the parts of a line.
std::vector<Json> rows_of(int num_ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program("mica-bench"));
  const TemporaryFolder folder;
  std::vector<std::string> command{"sh", "-c", "exec \"$@\" 2>'" + (folder / "errors") + "'", "sh"};
  for (std::string& word : under_mpirun(num_ranks, arguments)) command.push_back(std::move(word));
  const Finished finished = run(command, 120);
  EXPECT_EQ(finished.status, 0) << finished.output << read_text(folder / "errors");
  return json_lines(finished);
}

TEST(Bench, TrainReportsSpeedMemoryAndBound) {
  const Finished finished = run_bench(2, {"train", "--model", "char-tiny", "--batch", "2", "--seq", "16", "--steps", "3"});
  ASSERT_EQ(finished.status, 0) << finished.output;
  const std::vector<Json> rows = json_lines(finished);
  ASSERT_EQ(rows.size(), 1) << finished.output;
  const Json& row = rows[0];
  // 65*128 + 64*128 embeddings, 4 blocks of 12*128*128 + 13*128, final norm 2*128.
  EXPECT_EQ(row["params"], 809856);
  EXPECT_EQ(row["ranks"], 2);
  EXPECT_NEAR(row["tokens_per_s"].get<double>() * row["step_ms"].get<double>() / 1e3, 2 * 2 * 16, 0.5);
  EXPECT_GT(row["bound_ms"], 0.0);
  EXPECT_NEAR(row["bound_percent"].get<double>(), 100 * row["bound_ms"].get<double>() / row["step_ms"].get<double>(), 0.5);
  // Per token six FLOPs for each weight of a product (blocks of 12*128*128, the head), and causal attention: 6 * layers * width * seq.
  const double flops = 32 * (6.0 * (4 * 12 * 128 * 128 + 65 * 128) + 6 * 4 * 128 * 16);
  EXPECT_NEAR(row["machine_ms"].get<double>() * row["machine_gflop_per_s"].get<double>() * 1e6, flops, 0.02 * flops);
  EXPECT_NEAR(row["machine_percent"].get<double>(), 100 * row["machine_ms"].get<double>() / row["step_ms"].get<double>(), 0.5);
  EXPECT_EQ(row["peak_pool_bytes"].size(), 2);
  // Shards of parameters, gradients and two moments: more than that, and far less than 1 GB.
  EXPECT_GT(row["peak_pool_bytes"][0], 809856 / 2 * 16);
  EXPECT_LT(row["peak_pool_bytes"][0], 100'000'000);
  EXPECT_NEAR(row["first_loss"].get<double>(), 4.17, 0.2);  // ln 65
  EXPECT_EQ(row["slow_paths"], Json::array());
}

// A head of 65,536 x 16, whose logits Mica computes in two chunks of rows, and a block whose forward is computed again.
TEST(Bench, TheMachinesBoundCountsEachProductOnce) {
  const Finished finished =
      run_bench(1, {"train", "--batch=2", "--seq=256", "--steps=1", "--warmup=1", "--activation-checkpointing", "--model.layers=1",
                    "--model.heads=1", "--model.width=16", "--model.vocab_size=65536", "--model.context=256"});
  ASSERT_EQ(finished.status, 0) << finished.output;
  const Json row = json_lines(finished).at(0);
  const double flops = 512 * (6.0 * (12 * 16 * 16 + 65536 * 16) + 6 * 16 * 256);
  EXPECT_NEAR(row["machine_ms"].get<double>() * row["machine_gflop_per_s"].get<double>() * 1e6, flops, 0.02 * flops);
}

TEST(Bench, KernelsAccountForTheStep) {
  const TemporaryFolder folder;
  std::map<std::string, Json> rows;
  for (const Json& row : rows_of(2, {"kernels", "--batch=8", "--seq=32", "--steps=2", "--svg=" + (folder / "kernels.svg")})) {
    rows[row["task"]] = row;
  }
  EXPECT_GE(rows["(no task)"]["ms"], 0.0) << "no task is counted twice";
  EXPECT_LT(rows["(no task)"]["share"], 60.0);
  // Of 4 blocks; 256 tokens of 128 features.
  EXPECT_EQ(rows["attention_backward"]["calls"], 4);
  EXPECT_EQ(rows["linear_gelu"]["calls"], 4);
  EXPECT_EQ(rows["linear_gelu"]["gflop"], 0.13);  // 4 * 2 * 256 * 128 * 512
  EXPECT_EQ(rows["adamw"]["calls"], 1);
  EXPECT_GT(rows["add_layer_norm"]["copy_gb_s"], 0.0);
  EXPECT_GT(rows["linear"]["best_gf_s"], 0.0);
  EXPECT_TRUE(rows["adamw"]["gf_s"].is_null());
  for (const char* task : {"reduce_scatter", "wait_for_written", "head_loss_backward", "(no task)"})
    EXPECT_TRUE(rows.contains(task)) << task;
  const std::string svg = read_text(folder / "kernels.svg");
  EXPECT_THAT(svg, ::testing::StartsWith("<svg "));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  for (const char* task : {"linear_gelu", "attention_backward", "reduce_scatter"}) EXPECT_THAT(svg, ::testing::HasSubstr(task));
}

TEST(Bench, TrainTakesStrategyDtypeAndKeysOfMicaTrain) {
  const Finished finished =
      run_bench(2, {"train", "--batch=1", "--seq=8", "--steps=1", "--warmup=1", "--dtype=bf16", "--no-bound", "--strategy=shard_grad_op",
                    "--activation-checkpointing", "--fsdp.wrap=none", "--fsdp.recompute=cheap"});
  ASSERT_EQ(finished.status, 0) << finished.output;
  const std::vector<Json> rows = json_lines(finished);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0]["strategy"], "shard_grad_op");
  EXPECT_EQ(rows[0]["activation_checkpointing"], "block");
  EXPECT_EQ(rows[0]["recompute"], "cheap");
  EXPECT_EQ(rows[0]["keys"], Json::array({"--fsdp.wrap=none", "--fsdp.recompute=cheap"}));
  EXPECT_EQ(rows[0]["dtype"], "bf16");
  EXPECT_FALSE(rows[0].contains("bound_ms"));
  // Keys count before flags.
  const std::vector<Json> by_keys =
      rows_of(1, {"train", "--batch=1", "--seq=8", "--warmup=1", "--no-bound", "--fsdp.param_dtype=bf16", "--train.steps=2"});
  EXPECT_EQ(by_keys.at(0)["dtype"], "bf16");
  EXPECT_EQ(by_keys.at(0)["steps"], 2);
}

// Figures of threads that take turns are none of the machine's.
TEST(Bench, ThreadsThatShareACoreAreTold) {
  const std::string threads = "OMP_NUM_THREADS=" + std::to_string(2 * ::sysconf(_SC_NPROCESSORS_ONLN));
  const Finished finished =
      run({"env", threads, program("mica-bench"), "train", "--no-bound", "--batch=1", "--seq=8", "--steps=1", "--warmup=1"}, 120);
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, ::testing::HasSubstr("the threads take turns"));
}

TEST(Bench, GemmReportsEveryProductOfEveryLayer) {
  const std::vector<Json> rows =
      rows_of(1, {"gemm", "--rows=32", "--width=64", "--vocab=96", "--head-rows=8", "--rounds=1", "--dtypes=fp32"});
  ASSERT_EQ(rows.size(), 15);  // 5 layers x 3 products
  for (const Json& row : rows) {
    EXPECT_GT(row["mica_gf_s"], 0.0) << row;
    EXPECT_GT(row["onednn_gf_s"], 0.0) << row;
  }
}

// Zen 3 and older, Xeons before Cooper Lake: Mica computes bf16 by way of fp32, and so does what it is compared with.
TEST(Bench, ProcessorsWithoutBf16AreMeasuredToo) {
  const auto run_with_avx2 = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> command{"env", "ONEDNN_MAX_CPU_ISA=AVX2", program("mica-bench")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run(command, 120);
  };
  const Finished gemm = run_with_avx2({"gemm", "--rows=32", "--width=64", "--vocab=96", "--head-rows=8", "--rounds=1", "--dtypes=bf16"});
  ASSERT_EQ(gemm.status, 0) << gemm.output;
  for (const Json& row : json_lines(gemm)) {
    EXPECT_GT(row["mica_gf_s"], 0.0) << row;
    EXPECT_TRUE(row["onednn_gf_s"].is_null()) << row;
  }
  const Finished train = run_with_avx2({"train", "--batch=1", "--seq=8", "--steps=1", "--warmup=1", "--dtype=bf16"});
  ASSERT_EQ(train.status, 0) << train.output;
  EXPECT_GT(json_lines(train).at(0)["bound_ms"], 0.0);
}

// Libraries and instructions that one rank alone has are left out on all: ranks measure at the same time.
TEST(Bench, RanksOfDifferentProcessorsMeasureTheSame) {
  const std::vector<std::string> measure{program("mica-bench"), "gemm",          "--rows=32",  "--width=64",
                                         "--vocab=96",          "--head-rows=8", "--rounds=1", "--dtypes=bf16"};
  std::vector<std::string> old_one{"env", "ONEDNN_MAX_CPU_ISA=AVX2"};
  old_one.insert(old_one.end(), measure.begin(), measure.end());
  std::vector<std::string> command = under_mpirun(1, old_one);
  command.insert(command.end(), {":", "-np", "1"});
  command.insert(command.end(), measure.begin(), measure.end());
  const Finished finished = run(command, 120);
  ASSERT_EQ(finished.status, 0) << finished.output;
  const std::vector<Json> rows = json_lines(finished);
  EXPECT_EQ(rows.size(), 15U);
  for (const Json& row : rows) EXPECT_TRUE(row["onednn_gf_s"].is_null()) << row;
}

// What is measured is a hardware file that mica-plan takes.
TEST(Bench, HardwareOutIsReadByThePlanner) {
  const TemporaryFolder folder;
  const std::string file = folder / "this.json";
  const Finished gemm =
      run_bench(2, {"gemm", "--rows=32", "--width=64", "--vocab=96", "--head-rows=8", "--rounds=1", "--hardware-out=" + file});
  ASSERT_EQ(gemm.status, 0) << gemm.output;
  const Finished comm = run_bench(2, {"comm", "--mib=1", "--repeats=1", "--hardware-out=" + file});
  ASSERT_EQ(comm.status, 0) << comm.output;
  const Json json = Json::parse(read_text(file));
  EXPECT_EQ(json["ranks_per_node"], 2);
  EXPECT_THAT(json["sources"]["in_node_gb_s"].get<std::string>(), ::testing::HasSubstr("mica-bench comm on 2 ranks"));
  const Finished plan =
      run({program("mica-plan"), source_folder() + "/configs/gpt2-tiny-text.cfg", "--ranks=2", "--hardware=" + file, "--json"}, 60);
  ASSERT_EQ(plan.status, 0) << plan.output;
  EXPECT_GT(Json::parse(plan.output)["step_ms"], 0.0);
}

TEST(Bench, StoppedWhileMeasuringLeavesNoEmptyFile) {
  const TemporaryFolder folder;
  const Finished stopped = run({"timeout", "-s", "KILL", "4", program("mica-bench"), "gemm", "--rows=32", "--width=64", "--vocab=96",
                                "--head-rows=8", "--rounds=1000000", "--hardware-out=" + (folder / "this.json")});
  ASSERT_EQ(stopped.status, 128 + SIGKILL) << stopped.output;
  EXPECT_FALSE(std::filesystem::exists(folder / "this.json"));
}

TEST(Bench, CommReportsCollectivesBySize) {
  const Finished finished = run_bench(3, {"comm", "--mib=1,2", "--repeats=2"});
  ASSERT_EQ(finished.status, 0) << finished.output;
  const std::vector<Json> rows = json_lines(finished);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[1]["mib"], 2);
  for (const char* name : {"all_gather_gb_s", "reduce_scatter_gb_s", "all_reduce_gb_s", "memcpy_gb_s"}) EXPECT_GT(rows[0][name], 0.0);
}

// 1 MiB on two nodes of two ranks: half of it lacks on each.
TEST(Bench, CommCountsWhatCrossesNodes) {
  const auto row_of = [](const std::string& flag) {
    const Finished finished = run_bench(4, {"comm", "--mib=1", "--repeats=1", flag});
    EXPECT_EQ(finished.status, 0) << finished.output;
    return json_lines(finished).at(0);
  };
  const Json on_two = row_of("--ranks-per-node=2");
  EXPECT_EQ(on_two["all_gather_crossed_mib"], 1.0);
  EXPECT_EQ(on_two["reduce_scatter_crossed_mib"], 1.0);
  EXPECT_EQ(on_two["all_reduce_crossed_mib"], 2.0);
  EXPECT_EQ(row_of("--ranks-per-node=0")["all_reduce_crossed_mib"], 0.0) << "one node here";
}

TEST(Bench, IdleCostIsMeasured) {
  const Finished finished = run_bench(2, {"comm", "--idle-cost", "--repeats=1"});
  ASSERT_EQ(finished.status, 0) << finished.output;
  EXPECT_GT(json_lines(finished).at(0)["speed_kept_percent"], 0.0);
}

TEST(Bench, CheckpointSavesLoadsAndCleansUp) {
  const TemporaryFolder folder;
  const Finished finished = run_bench(2, {"checkpoint", "--model=char-tiny", "--repeats=2", "--dir=" + folder.path()});
  ASSERT_EQ(finished.status, 0) << finished.output;
  const std::vector<Json> rows = json_lines(finished);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_GE(rows[0]["raw_mb"], 9.0);  // 809,856 x 12 bytes
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Bench, OverheadComparesWithPlainComputation) {
  const Finished models = run_bench(2, {"overhead", "--rounds=1", "--batch=1", "--seq=16"});
  ASSERT_EQ(models.status, 0) << models.output;
  const std::vector<Json> rows = json_lines(models);
  const std::vector<std::string> variants{"plain", "flat", "per_parameter", "use_orig_params", "deterministic"};
  ASSERT_EQ(rows.size(), variants.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["variant"], variants[i]);
    EXPECT_GT(rows[i]["percent_of_plain"], 0.0);
  }
  EXPECT_EQ(rows[1]["percent_of_flat"], 100.0);
  const Finished runtime = run_bench(1, {"overhead", "--units=10", "--numel=100", "--rounds=1"});
  ASSERT_EQ(runtime.status, 0) << runtime.output;
  EXPECT_EQ(json_lines(runtime).at(0)["units"], 10);
}

TEST(Bench, MistakesAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes{
      {{"tran"}, "'tran'"},
      {{}, "no benchmark named"},
      {{"train", "--modle=char-tiny"}, "modle"},
      {{"train", "char-tiny"}, "unexpected argument 'char-tiny'"},
      {{"gemm", "--rounds"}, "--rounds"},
      {{"train", "--model=gpt9"}, "gpt2-124m"},
      {{"train", "--batch=0"}, "train.micro_batch"},
      {{"train", "--warmup=0"}, "--warmup=0"},
      {{"kernels", "--svg=/proc/nowhere/kernels.svg"}, "--svg=/proc/nowhere/kernels.svg"},
      {{"gemm", "--hardware-out=/proc/nowhere/this.json"}, "--hardware-out=/proc/nowhere/this.json"},
      {{"gemm", "--hardware-out=/dev/null", "--dtypes=fp32"}, "needs both dtypes"},
      {{"gemm", "--dtypes=fp16,fp32"}, "--dtypes=fp16,fp32"},
      {{"kernels", "--svg=/tmp/" + std::string(300, 'a')}, "--svg=/tmp/aaa"},
      {{"comm", "--hardware-out=/proc/nowhere/this.json"}, "mica-bench gemm --hardware-out=/proc/nowhere/this.json"},
      {{"comm", "--hardware-out=/dev/null", "--idle-cost"}, "--idle-cost"},
      {{"comm", "--hardware-out=/dev/null", "--ranks-per-node=1"}, "--ranks-per-node"},
      {{"comm", "--idle-cost", "--mib=4"}, "leave out --mib"},
      {{"comm", "--idle-cost", "--ranks-per-node=1"}, "--ranks-per-node"},
      {{"comm", "--mib=x"}, "'x'"},
      {{"comm", "--ranks-per-node=-1"}, "--ranks-per-node=-1"},
      {{"overhead", "--rounds=0"}, "--rounds=0"},
      {{"overhead", "--variants=flat,round"}, "'round'"},
      {{"checkpoint", "--dir=/proc/nowhere"}, "/proc/nowhere"},
      {{"checkpoint", "--dir=/tmp/" + std::string(300, 'a')}, "is not a folder"},
  };
  for (const auto& [arguments, text] : mistakes) {
    const Finished finished = run_bench(2, arguments);
    EXPECT_EQ(finished.status, 2) << text << "\n" << finished.output;
    EXPECT_THAT(json_lines(finished), ::testing::IsEmpty()) << "told only after measuring: " << text;
    EXPECT_THAT(finished.error_lines(), ::testing::ElementsAre(::testing::HasSubstr(text))) << finished.output;
  }
}

}  // namespace
}  // namespace mica::test
