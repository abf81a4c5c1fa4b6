// SPDX-License-Identifier: Apache-2.0
// What a forecast makes of a dry run.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "unit/train/planned_runs.hpp"

namespace mica::train {
namespace {

TEST(Forecast, AProcessHasThePagesOfItsPoolsAndMore) {
  const Cluster cpus = cluster(2, 2, "cpu-epyc-9654");
  const Forecast plain = make_forecast(tiny(), cpus);
  EXPECT_GE(plain.resident, plain.memory.peak + (32 << 20));
  EXPECT_LE(plain.resident, plain.memory.peak + plain.memory.peak / 50 + (40 << 20));
  const Forecast offloaded = make_forecast(tiny({"--fsdp.cpu_offload=parameters"}), cpus);
  EXPECT_GE(offloaded.resident, offloaded.memory.peak + offloaded.offload_peak + (32 << 20));
  EXPECT_EQ(make_forecast(tiny(), cluster(2, 2)).resident, 0) << "a GPU's memory is none of the process's";
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

TEST(Forecast, NothingIsComputedFasterThanThePeak) {
  const auto on = [](const std::string& hardware, const std::string& dtype) {
    return make_forecast(tiny({"--fsdp.param_dtype=" + dtype, "--model.context=8192", "--train.seq_len=8192"}), cluster(2, 2, hardware));
  };
  for (const std::string hardware : {"h100-80", "cpu-xeon-8480"}) {
    for (const std::string dtype : {"fp32", "fp16", "bf16"}) EXPECT_LE(on(hardware, dtype).hfu, 1) << hardware << " " << dtype;
  }
  const auto short_on_cpu = [](const std::string& dtype) {
    return make_forecast(parse_config(read_config_text(config_path("gpt2-124m")), {"--fsdp.param_dtype=" + dtype}),
                         cluster(2, 2, "cpu-xeon-8480"))
        .step.seconds;
  };
  EXPECT_LT(short_on_cpu("bf16"), 0.7 * short_on_cpu("fp32"));
  EXPECT_GT(short_on_cpu("fp16"), 0.9 * short_on_cpu("fp32")) << "computed in fp32";
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

// Small micro-batches peak alike here, in the optimizer's step: a search that goes on from their difference would try thousands. So few
// tokens that oneDNN's memory, which depends on the processor, is less than the optimizer's.
TEST(Forecast, TheLargestMicroBatchIsFoundWhereSmallOnesPeakAlike) {
  Cluster c = cluster(8, 8, "cpu-epyc-9654");
  c.hardware.memory_gib = 8 + c.hardware.reserved_gib;
  const auto config = [](std::int64_t micro_batch) {
    return parse_config(read_config_text(config_path("gpt2-124m")), {"--fsdp.strategy=no_shard", "--model.layers=2", "--train.seq_len=64",
                                                                     "--train.micro_batch=" + std::to_string(micro_batch)});
  };
  const auto in_use = [&](std::int64_t micro_batch) { return make_forecast(config(micro_batch), c).in_use; };
  ASSERT_EQ(in_use(1), in_use(2));
  const std::int64_t largest = largest_micro_batch(config(1), c), capacity = make_forecast(config(1), c).capacity;
  EXPECT_LE(in_use(largest), capacity);
  EXPECT_GT(in_use(largest + 1), capacity);
}

// --- the program -----------------------------------------------------------------------------------------------------

}  // namespace
}  // namespace mica::train
