// SPDX-License-Identifier: Apache-2.0
// The runtime on a device without memory: what it enqueues, on any number of ranks.
#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/train/planned_runs.hpp"

namespace mica::train {
namespace {

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
TEST(DryRun, HoldsACopyForCheckpointsThatAreMadeInTheBackground) {
  const auto copy = [](const std::vector<std::string>& flags) {
    return dry_run(tiny(flags), cluster(2, 2, "cpu-epyc-9654")).memory.peak_of(MemoryRole::snapshot);
  };
  EXPECT_GT(copy({"--checkpoint.async=true", "--checkpoint.interval=10"}), 0);
  EXPECT_GT(copy({"--checkpoint.async=true", "--checkpoint.interval=0", "--checkpoint.interval_minutes=5"}), 0);
  EXPECT_EQ(copy({"--checkpoint.async=true", "--checkpoint.interval=0"}), 0) << "the one after the last step is made at once";
  EXPECT_EQ(copy({"--checkpoint.async=false", "--checkpoint.interval=10"}), 0);
}

TEST(DryRun, RefusesAModelOfWhichNothingIsTrained) {
  try {
    static_cast<void>(dry_run(tiny({"--fsdp.freeze=*.h.*", "--fsdp.ignore=*"}), cluster(2, 2)));
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("fsdp.freeze = '*.h.*' and fsdp.ignore = '*' leave no parameter to train"));
  }
  EXPECT_NO_THROW(static_cast<void>(dry_run(tiny({"--fsdp.freeze=*.h.*"}), cluster(2, 2))));
}

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

}  // namespace
}  // namespace mica::train
