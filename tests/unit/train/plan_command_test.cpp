// SPDX-License-Identifier: Apache-2.0
// mica-plan: its flags, its table and JSON, and what it refuses.
#include "mica/train/plan_command.hpp"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.hpp"
#include "unit/train/planned_runs.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;

std::string output_of(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  EXPECT_EQ(run_plan(arguments, out), ExitCode::done);
  return out.str();
}

std::string error_of(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  try {
    static_cast<void>(run_plan(arguments, out));
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(PlanCommand, PlansEveryExample) {
  for (const auto& entry : std::filesystem::directory_iterator(test::source_folder() + "/configs")) {
    for (const std::string hardware : {"h100-80", "cpu-epyc-9654"}) {
      SCOPED_TRACE(entry.path().string() + " " + hardware);
      const auto json =
          nlohmann::json::parse(output_of({entry.path().string(), "--ranks=4", "--ranks-per-node", "2", "--hardware=" + hardware,
                                           "--optim.state_dtype=fp32", "--json", "--largest=false"}));
      for (const char* key : {"step_ms", "tokens_per_s_per_rank", "mfu", "peak_bytes", "exposed_comm_ms"}) {
        ASSERT_TRUE(json.contains(key)) << key;
        EXPECT_GE(json[key], 0.0) << key;
      }
      EXPECT_GT(json["step_ms"], 0.0);
      EXPECT_EQ(json["fits"], true);
    }
  }
}

// A CPU's hardware file describes one rank of a node: more ranks share what the node has, and mesh.threads may leave cores idle.
TEST(PlanCommand, RanksShareACpuNode) {
  const auto plan = [](const std::vector<std::string>& flags) {
    std::vector<std::string> all{config_path("gpt2-124m"), "--ranks=8", "--hardware=cpu-epyc-9654", "--json", "--largest=false",
                                 "--fsdp.param_dtype=fp32"};
    all.insert(all.end(), flags.begin(), flags.end());
    return nlohmann::json::parse(output_of(all));
  };
  const auto two = plan({"--ranks-per-node=2"}), eight = plan({"--ranks-per-node=8"}), half = plan({"--mesh.threads=48"});
  EXPECT_GT(eight["step_ms"], 3 * two["step_ms"].get<double>()) << "a quarter of the cores each";
  EXPECT_LT(eight["capacity_bytes"], two["capacity_bytes"].get<double>() / 3);
  EXPECT_NEAR(eight["mfu"], two["mfu"], 0.1);
  EXPECT_GT(half["step_ms"], 1.5 * two["step_ms"].get<double>());
  EXPECT_EQ(plan({"--mesh.threads=96"}), two);

  // Two ranks on a core have half of it each. A node fails as often as before.
  const auto per_node = [&](const std::string& ranks) { return plan({"--ranks=" + ranks, "--ranks-per-node=" + ranks}); };
  const auto a_core = per_node("192"), half_a_core = per_node("384");
  EXPECT_NEAR(half_a_core["hfu"].get<double>() / a_core["hfu"].get<double>(), 1, 0.1);
  const auto interval = [&](const std::string& ranks) { return per_node(ranks)["best_checkpoint_interval_s"].get<double>(); };
  EXPECT_NEAR(interval("8") / interval("2"), 1, 0.02);
}

TEST(PlanCommand, PrintsATable) {
  const std::string text =
      output_of({config_path("gpt2-124m"), "--ranks=16", "--hardware=a100-40", "--node-gbps=200", "--train.micro_batch=8"});
  EXPECT_THAT(text, HasSubstr("16 ranks, 8 per node, a100-40, 200 Gb/s per node"));
  EXPECT_THAT(text, HasSubstr("micro-batch 8 x accumulation 1 x 16 ranks"));
  EXPECT_THAT(text, HasSubstr("largest micro-batch"));
  EXPECT_THAT(text, HasSubstr("fits"));
}

TEST(PlanCommand, TimesAnotherSoftware) {
  const std::string config = config_path("gpt2-tiny-text");
  const auto json =
      nlohmann::json::parse(output_of({config, "--ranks=8", "--hardware=h100-80", "--software=pytorch", "--json", "--largest=false"}));
  EXPECT_EQ(json["software"], "pytorch");
  EXPECT_THAT(output_of({config, "--ranks=8", "--hardware=h100-80", "--software", "pytorch"}),
              HasSubstr("kernels                of pytorch"));
  EXPECT_EQ(nlohmann::json::parse(output_of({config, "--ranks=8", "--hardware=h100-80", "--json", "--largest=false"}))["software"], "mica");
}

TEST(PlanCommand, SaysWhereTheSearchForTheLargestMicroBatchEnds) {
  EXPECT_THAT(output_of({config_path("gpt2-tiny-text"), "--ranks=4", "--hardware=h100-80", "--train.seq_len=1"}),
              HasSubstr("largest micro-batch    16384 or more"));
}

TEST(PlanCommand, SaysWhatIsSharded) {
  const auto model_line = [](const std::string& strategy) {
    const std::string text =
        output_of({config_path("gpt2-tiny-text"), "--ranks=16", "--hardware=a100-40", "--largest=false", "--fsdp.strategy=" + strategy});
    const std::size_t at = text.find(" parameters, ");
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(model_line("full_shard"), " parameters, sharded over 16 ranks, 1 replicas");
  EXPECT_EQ(model_line("hybrid_shard"), " parameters, sharded over 8 ranks, 2 replicas");
  EXPECT_EQ(model_line("no_shard"), " parameters, whole on each of 16 ranks");
  EXPECT_EQ(model_line("shard_optim"), " parameters, whole on each rank; optimizer state sharded over 16 ranks, 1 replicas");
}

TEST(PlanCommand, NeedsNoData) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "x.cfg") << "[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 32\n[train]\nseq_len = 32\n";
  EXPECT_THAT(output_of({folder / "x.cfg", "--ranks=2", "--hardware=a100-40", "--largest=false"}), HasSubstr("tokens/s"));
}

// As mica-train: the model's keys come from its folder.
TEST(PlanCommand, NeedsNoConfigBesideAModelsFolder) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "x.cfg") << "[model]\ninit_from = " << test::reference_path("hf_gpt2") << "\n";
  const auto plan = [](const std::vector<std::string>& model, const std::string& flag) {
    std::vector<std::string> all{"--ranks=2", "--hardware=cpu-epyc-9654", "--train.seq_len=8", "--largest=false", flag};
    all.insert(all.end(), model.begin(), model.end());
    return output_of(all);
  };
  const std::string with_config = plan({folder / "x.cfg"}, "--json");
  EXPECT_GT(nlohmann::json::parse(with_config)["step_ms"], 0.0);
  EXPECT_EQ(plan({"--model.init_from=" + test::reference_path("hf_gpt2")}, "--json"), with_config);
  EXPECT_EQ(plan({"--model.init_from", test::reference_path("hf_gpt2")}, "--json"), with_config);
  static_cast<void>(plan({"--model.init_from=" + test::reference_path("hf_gpt2")}, "--svg=" + folder / "x.svg"));
  std::ostringstream drawn;
  drawn << std::ifstream(folder / "x.svg").rdbuf();
  EXPECT_THAT(drawn.str(), HasSubstr("hf_gpt2 on cpu-epyc-9654"));
  EXPECT_THAT(error_of({"--model.init_from=", "--ranks=2", "--hardware=h100-80"}),
              HasSubstr("needs a config, or --model.init_from=FOLDER,"));
  EXPECT_THAT(error_of({"--model.init_from=/proc/nowhere", "--ranks=2", "--hardware=h100-80"}), HasSubstr("/proc/nowhere: no such folder"));
}

// A plan is of the model that is asked for, whatever lies in the folder of a run.
TEST(PlanCommand, LooksIntoNoRunsFolder) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/checkpoints/step-00000005");
  std::ofstream(folder / "run/checkpoints/step-00000005/manifest.json") << "damaged";
  const std::vector<std::string> flags{"--model.init_from=" + test::reference_path("hf_gpt2"), "--ranks=2", "--hardware=cpu-epyc-9654",
                                       "--train.seq_len=8", "--largest=false"};
  std::vector<std::string> beside_a_run = flags;
  beside_a_run.push_back("--run.dir=" + folder / "run");
  EXPECT_EQ(output_of(beside_a_run), output_of(flags));
}

TEST(PlanCommand, SaysWhichIntervalOfSavesCounts) {
  const auto plan = [](const std::string& flag) {
    return output_of({config_path("gpt2-tiny-text"), "--ranks=8", "--hardware=a100-40", "--largest=false", flag});
  };
  const std::string words = "after saves and failures, if saved at that interval: the config names none";
  EXPECT_THAT(plan("--checkpoint.interval=0"), HasSubstr(words));
  EXPECT_THAT(plan("--checkpoint.interval=50"), ::testing::Not(HasSubstr(words)));
  EXPECT_THAT(plan("--checkpoint.interval_minutes=50"), ::testing::Not(HasSubstr(words)));
}

TEST(PlanCommand, SaysThatOffloadingIsNotTimed) {
  const auto plan_on = [](const std::string& hardware, const std::string& flag) {
    return output_of({config_path("gpt2-tiny-text"), "--ranks=8", "--hardware=" + hardware, "--fsdp.cpu_offload=parameters", flag});
  };
  const std::string left_out = "what fsdp.cpu_offload adds: copies between GPU and host";
  EXPECT_THAT(plan_on("a100-40", "--largest=false"), HasSubstr("left out             " + left_out));
  EXPECT_THAT(nlohmann::json::parse(plan_on("a100-40", "--json"))["left_out"].get<std::string>(), HasSubstr(left_out));
  EXPECT_THAT(plan_on("a100-40", "--advise"), HasSubstr("; times leave out " + left_out));
  EXPECT_FALSE(nlohmann::json::parse(plan_on("cpu-epyc-9654", "--json")).contains("left_out")) << "the same memory";
}

// A step of several micro-batches would be several steps of the optimizer: such choices are left out, and the plan of one is refused.
TEST(PlanCommand, AnOptimizerInBackwardTakesOneMicroBatchAStep) {
  const auto arguments = [](const std::vector<std::string>& more) {
    std::vector<std::string> all{config_path("gpt2-tiny-text"), "--ranks=16",          "--hardware=h100-80",
                                 "--optim.in_backward=true",    "--optim.grad_clip=0", "--train.micro_batch=1",
                                 "--train.global_batch=128"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_THAT(error_of(arguments({"--largest=false"})), HasSubstr("each of the 8 micro-batches of a step would be reduced"));
  EXPECT_THAT(output_of(arguments({"--advise"})), HasSubstr("--train.micro_batch=8"));
  EXPECT_THAT(output_of(arguments({"--largest=false", "--train.gradient_sync=no_sync"})), HasSubstr("accumulation 8"));
}

TEST(PlanCommand, Advises) {
  const std::string text =
      output_of({config_path("gpt2-tiny-text"), "--ranks=16", "--hardware=a100-40", "--advise", "--train.global_batch=64"});
  EXPECT_THAT(text, HasSubstr("choices fit on 16 ranks"));
  EXPECT_THAT(text, HasSubstr("--fsdp.strategy=hybrid_shard --mesh.shard_size=8"));
  EXPECT_THAT(text, HasSubstr("waits"));
}

// Where nothing fits without activation checkpointing, as few blocks are recomputed as the smallest micro-batch needs.
TEST(PlanCommand, AdvisesToRecomputeAFewBlocks) {
  const std::vector<std::string> flags{config_path("gpt2-124m"), "--ranks=8",
                                       "--hardware=a100-40",     "--largest=false",
                                       "--train.seq_len=196608", "--train.micro_batch=1",
                                       "--model.context=196608", "--train.global_batch=8"};
  const auto with = [&](const std::string& flag) {
    std::vector<std::string> all = flags;
    all.push_back(flag);
    return output_of(all);
  };
  const std::string text = with("--advise");
  const std::string way = "--fsdp.strategy=full_shard --mesh.shard_size=world --fsdp.wrap=block --fsdp.activation_checkpointing=";
  std::set<int> blocks;
  for (std::size_t at = text.find(way); at != std::string::npos; at = text.find(way, at + 1)) {
    blocks.insert(std::atoi(text.c_str() + at + way.size()));  // "block": 0
  }
  ASSERT_EQ(blocks.size(), 2U) << text;
  const int fewest = *blocks.rbegin();
  ASSERT_GT(fewest, 1);
  EXPECT_THAT(with(fmt::format("--fsdp.activation_checkpointing={}", fewest)), HasSubstr("(fits)"));
  EXPECT_THAT(with(fmt::format("--fsdp.activation_checkpointing={}", fewest - 1)), HasSubstr("(does NOT fit)"));
}

// With a frozen block, shard_grad_op with the whole model as one unit is refused: its unit would be partly frozen.
TEST(PlanCommand, AdviceTellsWhatIsRefused) {
  const std::vector<std::string> flags{config_path("gpt2-tiny-text"), "--ranks=16", "--hardware=a100-40", "--advise",
                                       "--fsdp.freeze=transformer.h.0.*"};
  const std::string text = output_of(flags);
  EXPECT_THAT(text, HasSubstr("choices fit on 16 ranks"));
  EXPECT_THAT(text, HasSubstr("refused: --fsdp.strategy=shard_grad_op --mesh.shard_size=world --fsdp.wrap=none"));

  std::vector<std::string> large = flags;
  large.insert(large.end(), {"--model.width=8192", "--model.heads=64", "--model.layers=80"});
  EXPECT_THAT(error_of(large), HasSubstr("nothing fits on 16 ranks of a100-40")) << "the refusal is not why";
}

// Only strategies whose shards stay inside a node can use shared memory.
TEST(PlanCommand, LeavesRefusedStrategiesOut) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "x.svg";
  const std::vector<std::string> flags{config_path("gpt2-tiny-text"), "--ranks=4",          "--hardware=cpu-epyc-9654",
                                       "--mesh.backend=shared",       "--ranks-per-node=2", "--fsdp.strategy=hybrid_shard"};
  const auto with = [&](const std::string& flag) {
    std::vector<std::string> all = flags;
    all.push_back(flag);
    return all;
  };
  EXPECT_THAT(output_of(with("--advise")), AllOf(HasSubstr("--fsdp.strategy=hybrid_shard --mesh.shard_size=2"),
                                                 HasSubstr("refused: --fsdp.strategy=full_shard --mesh.shard_size=world")));
  static_cast<void>(output_of(with("--svg=" + file)));
  std::ostringstream drawn;
  drawn << std::ifstream(file).rdbuf();
  EXPECT_THAT(drawn.str(),
              AllOf(HasSubstr("hybrid_shard, 4 ranks"), HasSubstr("full_shard, 2 ranks"), Not(HasSubstr("full_shard, 4 ranks"))));
}

// The keys of a choice, added to the command, plan what was advised: the config's own reshard_after_forward would contradict them.
TEST(PlanCommand, AdvisedKeysGiveTheAdvisedPlan) {
  std::vector<std::string> flags{config_path("gpt2-tiny-text"), "--ranks=16", "--hardware=a100-40", "--fsdp.reshard_after_forward=8",
                                 "--largest=false"};
  std::vector<std::string> advise = flags;
  advise.emplace_back("--advise");
  std::istringstream text(output_of(advise));
  std::string line, speed, key;
  std::getline(text, line);
  std::getline(text, speed);
  std::getline(text, line);
  for (std::istringstream keys(line); keys >> key;) flags.push_back(key);
  flags.emplace_back("--json");
  const auto json = nlohmann::json::parse(output_of(flags));
  EXPECT_THAT(speed, HasSubstr(fmt::format(" {:.0f} tokens/s per rank", json["tokens_per_s_per_rank"].get<double>())));
}

// Nor are they refused for keys of the config that they leave without an effect.
TEST(PlanCommand, AdvisedKeysLeaveNoKeyIdle) {
  const std::vector<std::string> flags{config_path("gpt2-tiny-text"),
                                       "--ranks=2",
                                       "--hardware=a100-40",
                                       "--largest=false",
                                       "--train.seq_len=65536",
                                       "--model.context=65536",
                                       "--fsdp.wrap=size",
                                       "--fsdp.min_numel=1000",
                                       "--fsdp.sharding=per_parameter",
                                       "--fsdp.shard_dims=*.weight:0"};
  std::vector<std::string> advise = flags;
  advise.emplace_back("--advise");
  std::istringstream text(output_of(advise));
  std::string line, key;
  int num_choices = 0;
  while (std::getline(text, line)) {
    if (line.find("--fsdp.strategy") == std::string::npos) continue;
    ++num_choices;
    std::vector<std::string> all = flags;
    for (std::istringstream keys(line); keys >> key;) all.push_back(key);
    EXPECT_THAT(output_of(all), HasSubstr("tokens/s")) << line;
  }
  EXPECT_GE(num_choices, 8);
}

TEST(PlanCommand, DrawsScaling) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "scaling.svg";
  static_cast<void>(output_of({config_path("gpt2-tiny-text"), "--ranks=24", "--hardware=a100-40", "--largest=false", "--svg=" + file}));
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_THAT(text.str(), ::testing::StartsWith("<svg"));
  for (const char* strategy : {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"}) {
    for (const char* ranks : {"8", "16", "24"}) EXPECT_THAT(text.str(), HasSubstr(std::string(strategy) + ", " + ranks + " ranks"));
  }
}

TEST(PlanCommand, RefusesWhatTheTrainerRefuses) {
  const auto refused = [](const std::string& name, const std::string& hardware, const std::string& flag) {
    return error_of({config_path(name), "--ranks=4", "--hardware=" + hardware, "--largest=false", flag});
  };
  EXPECT_THAT(refused("gpt2-xl", "a100-40", "--json"), HasSubstr("optim.state_dtype is int8, but this run is on a GPU"));
  for (const char* backend : {"mpi", "shared"}) {
    EXPECT_THAT(refused("mlp", "h100-80", fmt::format("--mesh.backend={}", backend)), HasSubstr("moves memory of the CPU"));
  }
  for (const char* backend : {"nccl", "staged"}) {
    EXPECT_THAT(refused("mlp", "cpu-epyc-9654", fmt::format("--mesh.backend={}", backend)), HasSubstr("moves memory of GPUs"));
  }
  EXPECT_THAT(refused("mlp", "cpu-epyc-9654", "--mesh.device=cuda"), HasSubstr("mesh.device = cuda, but cpu-epyc-9654 is a CPU"));
  EXPECT_THAT(refused("mlp", "h100-80", "--mesh.device=cpu"), HasSubstr("mesh.device = cpu, but h100-80 is a GPU"));
  EXPECT_EQ(refused("mlp", "h100-80", "--mesh.backend=nccl"), "no error");
  EXPECT_THAT(refused("mlp", "h100-80", "--mesh.backend=staged"), HasSubstr("plan with mesh.backend=nccl"));
}

TEST(PlanCommand, BadInputIsOneLine) {
  const std::string config = config_path("gpt2-tiny-text");
  EXPECT_THAT(error_of({}), HasSubstr("no hardware"));
  EXPECT_THAT(error_of({"--hardware=h100-80"}), HasSubstr("needs a config, or --model.init_from=FOLDER, and a number of ranks"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h1000"}), HasSubstr("--hardware=h1000 is neither a file nor one of"));
  EXPECT_THAT(error_of({config, "--ranks=0", "--hardware=h100-80"}), HasSubstr("--ranks=0, expected a whole number from 1 to 16384"));
  EXPECT_THAT(error_of({config, "--ranks=12", "--hardware=h100-80"}), HasSubstr("is not a multiple of the 8 ranks of a node"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--node-gbps=-1"}), HasSubstr("--node-gbps=-1"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--rank=4"}), HasSubstr("unknown flag --rank"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--train.micro_bach=4"}), HasSubstr("train.micro_batch"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--train.global_batch=3"}), HasSubstr("3"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--train.micro_batch=1", "--train.global_batch=40000"}),
              HasSubstr("is 5000 micro-batches per step"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--advise", "--json"}), HasSubstr("leave out --json"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--mesh.shard_size=3"}), HasSubstr("mesh.shard_size=3"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--software=torch"}),
              HasSubstr("--software=torch is neither a file nor one of"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=h100-80", "--software="}), HasSubstr("--software needs a name or a file"));
  EXPECT_THAT(error_of({config, "--ranks=8", "--hardware=cpu-epyc-9654", "--software=pytorch"}),
              HasSubstr("has no attention on cpu-epyc-9654"));
  EXPECT_THAT(error_of({"missing.cfg", "--ranks=8", "--hardware=h100-80"}), HasSubstr("missing.cfg"));
}

TEST(PlanCommand, PrintsHardware) {
  const auto json = nlohmann::json::parse(output_of({"--hardware=h200", "--print-hardware"}));
  EXPECT_EQ(json["name"], "h200");
}

}  // namespace
}  // namespace mica::train
