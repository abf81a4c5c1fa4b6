// SPDX-License-Identifier: Apache-2.0
// The runtime on a device without memory: what it enqueues, on any number of ranks, and what a forecast makes of it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/train/forecast.hpp"
#include "mica/train/plan_command.hpp"

#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;

std::string config_path(const std::string& name) { return test::source_folder() + "/configs/" + name + ".cfg"; }

Config tiny(const std::vector<std::string>& flags = {}) { return parse_config(read_config_text(config_path("gpt2-tiny-text")), flags); }

Cluster cluster(int num_ranks, int ranks_per_node, const std::string& hardware = "a100-80") {
  return {.hardware = plan::find_hardware(hardware), .num_ranks = num_ranks, .ranks_per_node = ranks_per_node};
}

plan::StepTotals totals(const DryRun& run, int ranks_per_node) { return plan::totals_of(run.record, 1, ranks_per_node); }

// gpt2-tiny-text: 4 blocks of 12 * 128^2 + 13 * 128 parameters; the root has 256 * 128 + 128 * 128 + 2 * 128.
constexpr double kBlock = 12 * 128 * 128 + 13 * 128, kRootUnit = 256 * 128 + 128 * 128 + 2 * 128, kAll = 4 * kBlock + kRootUnit;

TEST(DryRun, CountsTheCollectivesOfAStep) {
  const DryRun run = dry_run(tiny(), cluster(4, 2));
  EXPECT_EQ(run.num_parameters, static_cast<std::int64_t>(kAll));
  const plan::StepTotals t = totals(run, 2);
  // 5 gathers forward, 4 backward (the root keeps its parameters), 5 reductions, the norm.
  EXPECT_EQ(t.num_collectives, 5 + 4 + 5 + 1);
  const double sent = 4 * (kAll + 4 * kBlock + kAll) * 3 / 4;
  EXPECT_NEAR(t.sent_in_node, sent, 0.01 * sent);
  EXPECT_NEAR(t.sent_to_network, sent / 2, 0.005 * sent);  // a node's two ranks send it once
}

TEST(DryRun, CountsTheFlopsOfAStep) {
  const plan::StepTotals t = totals(dry_run(tiny(), cluster(4, 2)), 2);
  const double tokens = 8 * 128;
  EXPECT_DOUBLE_EQ(t.product_flops, 6 * tokens * (4 * 12 * 128 * 128 + 256 * 128));
  // 7 products of half of [128, 128] scores a head, in 4 blocks.
  EXPECT_DOUBLE_EQ(t.attention_flops, 7 * 128 * tokens * 128 * 4);
  EXPECT_DOUBLE_EQ(t.model_attention_flops, 12 * 128 * tokens * 128 * 4);
  const plan::StepTotals again = totals(dry_run(tiny({"--fsdp.activation_checkpointing=block"}), cluster(4, 2)), 2);
  EXPECT_DOUBLE_EQ(again.product_flops, t.product_flops + 2 * tokens * 4 * 12 * 128 * 128);
  EXPECT_DOUBLE_EQ(again.model_attention_flops, t.model_attention_flops);
  // The blocks' forward: its products, and 2 of the 7 of attention.
  EXPECT_EQ(t.recomputed_flops, 0);
  EXPECT_DOUBLE_EQ(again.recomputed_flops, again.product_flops + again.attention_flops - t.product_flops - t.attention_flops);
  EXPECT_DOUBLE_EQ(again.attention_flops, t.attention_flops / 7 * 9);
}

TEST(DryRun, AccumulationRepeatsTheRounds) {
  const DryRun once = dry_run(tiny(), cluster(4, 2)), thrice = dry_run(tiny({"--train.global_batch=96"}), cluster(4, 2));
  EXPECT_DOUBLE_EQ(totals(thrice, 2).product_flops, 3 * totals(once, 2).product_flops);
  EXPECT_EQ(totals(thrice, 2).num_collectives, 3 * 14 + 1);
}

TEST(DryRun, TellsTheMemoryOfAStepPointByPoint) {
  const plan::StepMemory step = dry_run(tiny(), cluster(4, 2, "cpu-epyc-9654")).step_memory;
  const auto of = [](const plan::MemoryLevel& level, MemoryRole role) { return level.by_role[static_cast<std::size_t>(role)]; };
  EXPECT_EQ(of(step.start, MemoryRole::sharded_grad), 0);
  EXPECT_GT(of(step.start, MemoryRole::optimizer), 0);
  EXPECT_GT(step.forward_peak.total, step.start.total);
  EXPECT_EQ(of(step.forward_peak, MemoryRole::unsharded_grad), 0);
  EXPECT_EQ(of(step.forward_peak, MemoryRole::sharded_grad), 0);
  EXPECT_GT(step.backward_peak.total, step.forward_peak.total);
  EXPECT_GT(of(step.backward_peak, MemoryRole::unsharded_grad), 0);
  EXPECT_GT(of(step.after_backward, MemoryRole::sharded_grad), 0);
  EXPECT_GE(step.optimizer_peak.total, step.after_backward.total);
  EXPECT_EQ(step.end.total, step.start.total);
}

// Masters, gradients and two moments of a shard, 4 bytes each, are there when the optimizer steps.
TEST(DryRun, HoldsShards) {
  const auto at = [](const DryRun& run, MemoryRole role) { return static_cast<double>(run.memory.peak_of(role)); };
  for (const int ranks : {1, 4, 64}) {
    const DryRun run = dry_run(tiny(), cluster(ranks, std::min(ranks, 8)));
    const double shard = 4 * kAll / ranks;
    EXPECT_NEAR(at(run, MemoryRole::sharded_param), shard, 0.1 * shard) << ranks;
    EXPECT_NEAR(at(run, MemoryRole::sharded_grad), shard, 0.1 * shard) << ranks;
    EXPECT_NEAR(at(run, MemoryRole::optimizer), 2 * shard, 0.1 * 2 * shard) << ranks;
  }
}

// Their places decide which buffers wait for each other.
TEST(DryRun, OnGpusBuffersThatNcclRegistersHaveBlocksOfTheirOwn) {
  const auto run = [](const std::vector<std::string>& flags) {
    return dry_run(parse_config(read_config_text(config_path("gpt2-124m")), flags), cluster(16, 8));
  };
  const DryRun registered = run({}), not_registered = run({"--mesh.register_buffers=false"});
  EXPECT_EQ(registered.memory.peak, not_registered.memory.peak);
  EXPECT_GT(registered.memory.reserved_peak, not_registered.memory.reserved_peak) << "only buffers of nearly the same size use them again";
}

// To the byte: of all that a run holds, the moments alone become smaller.
TEST(DryRun, HoldsMomentsInTheirPrecision) {
  for (const int ranks : {1, 4}) {
    const Cluster cpus = cluster(ranks, ranks, "cpu-epyc-9654");
    const auto memory = [&](const std::string& dtype) {
      return dry_run(tiny({"--optim.state_dtype=" + dtype, "--checkpoint.async=false"}), cpus).memory;
    };
    const MemoryStats wide = memory("fp32");
    const std::int64_t numel = wide.peak_of(MemoryRole::optimizer) / 8;
    for (const auto& [dtype, bytes] : {std::pair("bf16", 2), std::pair("int8", 1)}) {
      const MemoryStats narrow = memory(dtype);
      EXPECT_EQ(narrow.peak_of(MemoryRole::optimizer), 2 * bytes * numel);
      EXPECT_EQ(narrow.current, wide.current - 2 * (4 - bytes) * numel);
    }
  }
}

// Shared masters are all that a step's units need: no other storage, and no all-gather.
TEST(DryRun, OnCpusANodesRanksShareMasters) {
  for (const auto& [ranks, ranks_per_node, flags, shares] : {
           std::tuple<int, int, std::vector<std::string>, bool>{4, 4, {}, true},
           {4, 4, {"--mesh.backend=shared"}, true},
           {4, 2, {"--fsdp.strategy=hybrid_shard"}, true},
           {4, 4, {"--mesh.backend=mpi"}, false},
           {4, 4, {"--fsdp.sharding=per_parameter"}, false},
           {4, 2, {}, false},
       }) {
    SCOPED_TRACE(fmt::format("{} ranks, {} a node, {}", ranks, ranks_per_node, fmt::join(flags, " ")));
    const DryRun run = dry_run(tiny(flags), cluster(ranks, ranks_per_node, "cpu-epyc-9654"));
    const auto gathers = std::ranges::count_if(run.record.ops, [](const plan::RecordedOp& op) {
      return op.kind == plan::RecordedOp::Kind::collective && op.collective == Collective::all_gather;
    });
    EXPECT_EQ(gathers, shares ? 0 : 2 * (5 + 4)) << "of two steps";
    EXPECT_EQ(run.memory.peak_of(MemoryRole::unsharded_param) > 0, !shares);
    const double shard = 4 * kAll / run.shard_size;
    EXPECT_NEAR(static_cast<double>(run.memory.peak_of(MemoryRole::sharded_param)), shard, 0.1 * shard);
  }
  EXPECT_THROW((void)dry_run(tiny({"--mesh.backend=shared"}), cluster(4, 2, "cpu-epyc-9654")), ConfigError);
}

// A wait for a neighbour's counter moves none of the memory that it guards.
TEST(DryRun, WaitingForSharedMastersReadsNothing) {
  const auto kernel_bytes = [](const std::string& backend) {
    return totals(dry_run(tiny({"--mesh.backend=" + backend}), cluster(4, 4, "cpu-epyc-9654")), 4).kernel_bytes;
  };
  EXPECT_EQ(kernel_bytes("shared"), kernel_bytes("mpi"));
}

TEST(Forecast, AProcessHasThePagesOfItsPoolsAndMore) {
  const Cluster cpus = cluster(2, 2, "cpu-epyc-9654");
  const Forecast plain = make_forecast(tiny(), cpus);
  EXPECT_GE(plain.resident, plain.memory.peak + (32 << 20));
  EXPECT_LE(plain.resident, plain.memory.peak + plain.memory.peak / 50 + (40 << 20));
  const Forecast offloaded = make_forecast(tiny({"--fsdp.cpu_offload=parameters"}), cpus);
  EXPECT_GE(offloaded.resident, offloaded.memory.peak + offloaded.offload_peak + (32 << 20));
  EXPECT_EQ(make_forecast(tiny(), cluster(2, 2)).resident, 0) << "a GPU's memory is none of the process's";
}

TEST(DryRun, IsOfAnyNumberOfRanks) {
  const DryRun run = dry_run(tiny({"--train.micro_batch=1"}), cluster(16384, 8));
  const auto gather = std::ranges::find(run.record.ops, plan::RecordedOp::Kind::collective, &plan::RecordedOp::kind);
  ASSERT_NE(gather, run.record.ops.end());
  EXPECT_EQ(gather->group, (plan::GroupShape{.num_ranks = 16384, .num_nodes = 2048, .ranks_on_node = 8}));
}

// The layers of eager software are kernels of their own; what they compute and send is the same.
TEST(DryRun, OfAnotherSoftwareFusesWhatThatDoes) {
  Cluster theirs = cluster(4, 2);
  theirs.software = plan::find_software("pytorch");
  const auto count = [](const DryRun& run, std::string_view what) {
    const auto second = std::ranges::find(run.record.ops, plan::RecordedOp::Kind::mark, &plan::RecordedOp::kind);
    return std::count_if(run.record.ops.begin(), second, [&](const plan::RecordedOp& op) { return op.what == what; });
  };
  const DryRun fused = dry_run(tiny(), cluster(4, 2)), apart = dry_run(tiny(), theirs);
  theirs.software = plan::find_software("pytorch-compiled");
  EXPECT_EQ(count(dry_run(tiny(), theirs), "linear_gelu"), 4);
  EXPECT_EQ(count(fused, "linear_gelu"), 4);
  EXPECT_EQ(count(fused, "linear_gelu_backward_input"), 4);
  EXPECT_EQ(count(apart, "linear_gelu"), 0);
  EXPECT_EQ(count(apart, "gelu"), 4);
  // Two residual sums a block forward, and two backward.
  EXPECT_EQ(count(apart, "add"), 4 * 4);
  EXPECT_EQ(totals(apart, 2).product_flops, totals(fused, 2).product_flops);
  EXPECT_EQ(totals(apart, 2).num_collectives, totals(fused, 2).num_collectives);
  EXPECT_EQ(totals(apart, 2).sent_to_network, totals(fused, 2).sent_to_network);
}

// A software file names tasks; each is one that some model's step has.
TEST(DryRun, HasTheTasksOfSoftwareFiles) {
  Cluster theirs = cluster(2, 2);
  theirs.software = plan::find_software("pytorch");
  std::set<std::string> tasks;
  for (const char* name : {"gpt2-tiny-text", "llama-tiny-text"}) {
    const Config config = parse_config(read_config_text(config_path(name)), {});
    for (const Cluster& layers_apart_or_fused : {theirs, cluster(2, 2)}) {
      for (const plan::RecordedOp& op : dry_run(config, layers_apart_or_fused).record.ops) tasks.insert(op.what);
    }
  }
  for (const std::string& name : plan::software_names()) {
    for (const auto& [task, cost] : plan::find_software(name).kernels) EXPECT_TRUE(tasks.contains(task)) << name << " " << task;
  }
}

TEST(Forecast, OnGpusHasMicasKernels) {
  const Config config = parse_config(read_config_text(config_path("gpt2-124m")), {});
  Cluster gpus = cluster(2, 2);
  const double by_default = make_forecast(config, gpus).step.seconds;
  gpus.software = plan::find_software("mica");
  EXPECT_EQ(make_forecast(config, gpus).step.seconds, by_default);
  gpus.software = plan::Software{.name = "at full bandwidth", .fuses_layers = true, .attention = {}, .kernels = {}};
  EXPECT_LT(1.05 * make_forecast(config, gpus).step.seconds, by_default);
}

TEST(Forecast, EffectsHaveTheRightSign) {
  const auto forecast = [](const std::vector<std::string>& flags, double gbps) {
    Cluster c = cluster(32, 8);
    c.hardware.network_gbps = gbps;
    return make_forecast(parse_config(read_config_text(config_path("gpt2-124m")), flags), c);
  };
  const Forecast full = forecast({}, 100), fast = forecast({}, 1600);
  EXPECT_GT(full.step.seconds, 1.5 * fast.step.seconds);
  EXPECT_GT(full.step.exposed, fast.step.exposed);
  // Shards within nodes cross the network once a step, not three times; parameters that are kept are gathered once, not twice.
  EXPECT_LT(forecast({"--fsdp.strategy=hybrid_shard"}, 100).step.seconds, full.step.seconds);
  EXPECT_LT(forecast({"--fsdp.strategy=shard_grad_op"}, 100).step.seconds, full.step.seconds);
  EXPECT_GE(forecast({"--fsdp.backward_prefetch=none"}, 1600).step.exposed, fast.step.exposed);
  EXPECT_GT(fast.mfu, 0.05);
  EXPECT_LT(fast.mfu, fast.hfu + 0.1);
}

// Where the network is all that counts, a step takes what its bytes take. gpt2-124m: 12 blocks of 7.09 M parameters in bf16, a root unit
// of 39.4 M, gradients in fp32; 4 nodes of 8.
TEST(Forecast, EffectsHaveTheRightSize) {
  const auto forecast = [](const std::vector<std::string>& flags, double gbps) {
    Cluster c = cluster(32, 8);
    c.hardware.network_gbps = gbps;
    return make_forecast(parse_config(read_config_text(config_path("gpt2-124m")), flags), c);
  };
  constexpr double kBlocks = 85.05, kRootUnit = 39.38, kSlow = 10, kFast = 1600;
  const double gathered = 2 * (kBlocks + kRootUnit), again = 2 * kBlocks, reduced = 4 * (kBlocks + kRootUnit);
  const double full = forecast({}, kSlow).step.seconds;
  // SHARD_GRAD_OP does not gather the blocks again.
  EXPECT_NEAR(full / forecast({"--fsdp.strategy=shard_grad_op"}, kSlow).step.seconds, (gathered + again + reduced) / (gathered + reduced),
              0.02);
  // HYBRID_SHARD sends gradients only, 3/4 of them to and 3/4 from each node; FULL_SHARD 31/32 of everything.
  EXPECT_NEAR(full / forecast({"--fsdp.strategy=hybrid_shard"}, kSlow).step.seconds,
              31.0 / 32 * (gathered + again + reduced) / (1.5 * reduced), 0.05);
  // On a fast network gathers are hidden.
  EXPECT_LT(forecast({}, kFast).step.seconds, 1.05 * forecast({"--fsdp.strategy=shard_grad_op"}, kFast).step.seconds);
  // The rate limiter (limit_all_gathers) delays gathers, which costs a little where they are not hidden.
  const std::string off = "--fsdp.limit_all_gathers=false";
  for (const double gbps : {kSlow, 100.0, 400.0, kFast}) {
    const Forecast with = forecast({}, gbps), without = forecast({off}, gbps);
    EXPECT_GE(with.step.seconds, 0.9999 * without.step.seconds) << gbps;
    EXPECT_LE(with.step.seconds, 1.05 * without.step.seconds) << gbps;
    EXPECT_GT(with.step.host_waits, without.step.host_waits) << gbps;
  }
}

// A long sequence, of which MFU counts all scores: it exceeds HFU, and what is recomputed is told all the same.
TEST(Forecast, TheRecomputedShareIsOfTheFlopsComputed) {
  const auto forecast = [](const std::string& checkpointing) {
    return make_forecast(tiny({"--fsdp.activation_checkpointing=" + checkpointing, "--model.context=2048", "--train.seq_len=2048"}),
                         cluster(4, 4));
  };
  const auto flops = [](const Forecast& f) { return f.totals.product_flops + f.totals.attention_flops; };
  const Forecast kept = forecast("none"), recomputed = forecast("block");
  ASSERT_GT(recomputed.mfu, recomputed.hfu);
  EXPECT_EQ(kept.recomputed(), 0);
  EXPECT_GT(recomputed.recomputed(), 0.15);
  EXPECT_DOUBLE_EQ(recomputed.recomputed(), 1 - flops(kept) / flops(recomputed));
}

TEST(Forecast, AnotherSoftwareTakesLonger) {
  const Config config = parse_config(read_config_text(config_path("gpt2-124m")), {});
  Cluster c = cluster(8, 8);
  EXPECT_EQ(make_forecast(config, c).software, "mica");
  c.software = plan::Software{.name = "fused", .fuses_layers = true, .attention = {}, .kernels = {}};
  const Forecast fused = make_forecast(config, c);
  c.software->fuses_layers = false;
  const Forecast apart = make_forecast(config, c);
  c.software = plan::find_software("llm-foundry-2023");
  const Forecast slower = make_forecast(config, c);
  EXPECT_EQ(slower.software, "llm-foundry-2023");
  EXPECT_GT(apart.step.seconds, fused.step.seconds);
  EXPECT_GT(slower.step.seconds, 1.1 * apart.step.seconds);
}

TEST(Forecast, TheLargestMicroBatchFitsAndTheNextDoesNot) {
  Cluster c = cluster(4, 4);
  c.hardware.memory_gib = c.hardware.reserved_gib + 0.25;
  const std::int64_t largest = largest_micro_batch(tiny(), c);
  ASSERT_GT(largest, 1);
  const auto capacity = static_cast<std::int64_t>(0.25 * (1 << 30));
  EXPECT_LE(dry_run(tiny({"--train.micro_batch=" + std::to_string(largest)}), c).memory.peak, capacity);
  EXPECT_GT(dry_run(tiny({"--train.micro_batch=" + std::to_string(largest + 1)}), c).memory.peak, capacity);
  c.hardware.memory_gib = c.hardware.reserved_gib + 1e-6;
  EXPECT_EQ(largest_micro_batch(tiny(), c), 0);
}

// All bytes over the rate of the nodes that write. Padding to sectors is below 4 %.
TEST(Forecast, ACheckpointTakesWhatItsBytesTake) {
  const auto expect = [](int ranks_per_node, const std::vector<std::string>& flags, double bytes_a_parameter, int nodes) {
    const Cluster c = cluster(4, ranks_per_node, "cpu-epyc-9654");
    const double seconds = bytes_a_parameter * kAll / (nodes * c.hardware.storage_gb_s * 1e9);
    EXPECT_NEAR(make_forecast(tiny(flags), c).checkpoint_s, seconds, 0.04 * seconds) << fmt::format("{}", fmt::join(flags, " "));
  };
  expect(4, {}, 12, 1);
  expect(2, {}, 12, 2);
  expect(1, {}, 12, 4);
  expect(2, {"--optim.state_dtype=bf16"}, 8, 2);
  expect(2, {"--optim.state_dtype=int8"}, 6, 2);
  expect(2, {"--optim.type=sgd"}, 4, 2);
  expect(2, {"--optim.type=sgd", "--optim.momentum=0.9"}, 8, 2);
  expect(2, {"--checkpoint.optimizer=false"}, 4, 2);
  expect(2, {"--fsdp.strategy=hybrid_shard"}, 12, 2);  // replica 0 writes shard 0, replica 1 shard 1
  expect(1, {"--fsdp.strategy=no_shard"}, 12, 1);
}

TEST(Forecast, TheShorterIntervalCounts) {
  const Cluster c = cluster(4, 2);
  const auto expect = [&](const std::vector<std::string>& flags, double interval_s) {
    const Forecast f = make_forecast(tiny(flags), c);
    const double failing = (interval_s / 2 + c.hardware.restart_s) / (c.hardware.rank_mtbf_hours * 3600 / 4);
    EXPECT_NEAR(f.goodput, (1 - failing) / (1 + f.checkpoint_s / interval_s), 1e-9) << fmt::format("{}", fmt::join(flags, " "));
  };
  const double step_s = make_forecast(tiny(), c).step.seconds;
  expect({"--checkpoint.interval=0", "--checkpoint.interval_minutes=10"}, 600);
  expect({"--checkpoint.interval=100", "--checkpoint.interval_minutes=10"}, 100 * step_s);
  expect({"--checkpoint.interval=100000000", "--checkpoint.interval_minutes=10"}, 600);
}

// Micro-batches 1 to 3 peak alike here, in the optimizer's step: a search that goes on from their difference would try thousands.
TEST(Forecast, TheLargestMicroBatchIsFoundWhereSmallOnesPeakAlike) {
  const Cluster c = cluster(8, 8, "cpu-epyc-9654");
  const auto config = [](std::int64_t micro_batch) {
    return parse_config(read_config_text(config_path("gpt2-124m")),
                        {"--fsdp.strategy=no_shard", "--model.layers=2", "--train.micro_batch=" + std::to_string(micro_batch)});
  };
  const auto in_use = [&](std::int64_t micro_batch) { return make_forecast(config(micro_batch), c).in_use; };
  ASSERT_EQ(in_use(1), in_use(2));
  const std::int64_t largest = largest_micro_batch(config(1), c), capacity = make_forecast(config(1), c).capacity;
  EXPECT_LE(in_use(largest), capacity);
  EXPECT_GT(in_use(largest + 1), capacity);
}

// --- the program -----------------------------------------------------------------------------------------------------

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

TEST(PlanCommand, Advises) {
  const std::string text =
      output_of({config_path("gpt2-tiny-text"), "--ranks=16", "--hardware=a100-40", "--advise", "--train.global_batch=64"});
  EXPECT_THAT(text, HasSubstr("choices fit on 16 ranks"));
  EXPECT_THAT(text, HasSubstr("--fsdp.strategy=hybrid_shard --mesh.shard_size=8"));
  EXPECT_THAT(text, HasSubstr("waits"));
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
}

TEST(PlanCommand, BadInputIsOneLine) {
  const std::string config = config_path("gpt2-tiny-text");
  EXPECT_THAT(error_of({}), HasSubstr("no hardware"));
  EXPECT_THAT(error_of({"--hardware=h100-80"}), HasSubstr("needs a config and a number of ranks"));
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
