// SPDX-License-Identifier: Apache-2.0
// Times of products and collectives, worked out by hand on hardware with round figures; and hardware files.
#include "mica/plan/step_cost.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/plan/hardware.hpp"

namespace mica::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Hardware round_hardware() {
  Hardware h;
  h.product_tflops = {.fp32 = 1, .tf32 = 2, .bf16 = 10};
  h.name = "round";
  h.attention = {.forward_tflops = 2, .backward_tflops = 1, .half_tokens = 100};
  h.memory_gb_s = 1000;
  h.in_node_gb_s = 100;
  h.network_gbps = 80;  // 10 GB/s
  h.protocols = {{.bandwidth_share = 1, .base_us = 10, .in_node_step_us = 1, .network_step_us = 5}};
  return h;
}

TEST(StepCost, ProductsTakeTheirFlopsOrTheirBytes) {
  const Hardware h = round_hardware();
  // 2e9 operations at 1 and 10 TF/s.
  EXPECT_DOUBLE_EQ(product_seconds({.m = 1000, .n = 1000, .k = 1000}, h), 2e-3);
  EXPECT_DOUBLE_EQ(product_seconds({.m = 1000, .n = 1000, .k = 1000}, h, true), 1e-3);
  EXPECT_DOUBLE_EQ(product_seconds({.m = 1000, .n = 1000, .k = 1000, .dtype = DType::bf16}, h), 2e-4);
  // A row: 2e6 operations would take 0.2 us, but 2 (1e6 + 2000) bytes take 2.004 us.
  EXPECT_NEAR(product_seconds({.m = 1, .n = 1000, .k = 1000, .dtype = DType::bf16}, h), 2.004e-6, 1e-12);
}

TEST(StepCost, TilesThatDoNotFillTheProcessorsCost) {
  Hardware h = round_hardware();
  h.processors = 4;
  // 2 x 2 tiles of 128 x 128 fill them; 5 tiles take two rounds of 8 places (sums of 256 are too short to split).
  const double four = product_seconds({.m = 256, .n = 256, .k = 256}, h), five = product_seconds({.m = 128, .n = 640, .k = 256}, h);
  EXPECT_DOUBLE_EQ(four, 2.0 * 256 * 256 * 256 / 1e12);
  EXPECT_DOUBLE_EQ(five, 2.0 * 128 * 640 * 256 / 1e12 / (5.0 / 8));
  // One tile with a long sum is split into four.
  EXPECT_DOUBLE_EQ(product_seconds({.m = 128, .n = 128, .k = 4096}, h), 2.0 * 128 * 128 * 4096 / 1e12);
}

// --- kernels -----------------------------------------------------------------------------------------------------------

double seconds_of(const RecordedOp& op, const Hardware& hardware, CostOptions options = {}) {
  StepRecord record;
  record.products = {{.m = 1000, .n = 1000, .k = 1000}};
  record.ops = {op};
  return sim_ops(record, hardware, options).at(0).seconds;
}

TEST(StepCost, AttentionIsSlowerOnShortSequences) {
  const Hardware h = round_hardware();
  const RecordedOp forward{.what = "attention", .attention_flops = 2e9};
  const RecordedOp backward{.what = "attention_backward", .attention_flops = 2e9, .is_backward = true};
  // 100 tokens reach half of 2 TF/s, 300 three quarters.
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100}), 2e-3);
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 300}), 1e-3 / 0.75);
  EXPECT_DOUBLE_EQ(seconds_of(backward, h, {.seq_len = 100}), 4e-3);
}

// Heads of 64 reach 64 / (64 + 72) x 200 / 128 of what those of 128 do; wider ones no more.
TEST(StepCost, AGpusAttentionIsSlowerWithNarrowHeads) {
  Hardware h = round_hardware();
  const RecordedOp forward{.what = "attention", .attention_flops = 2e9};
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100, .head_dim = 64}), 2e-3 / (64.0 / 136 * 200 / 128));
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100, .head_dim = 256}), 2e-3);
  h.is_gpu = false;
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100, .head_dim = 64}), 2e-3);
}

// Of the attention's 2 TF/s, as of the products' 10, fp32 reaches 1.
TEST(StepCost, WhatIsNotComputedInSixteenBitsHasTheRateOfFp32) {
  Hardware h = round_hardware();
  const RecordedOp forward{.what = "attention", .attention_flops = 2e9};
  const ProductShape half{.m = 1000, .n = 1000, .k = 1000, .dtype = DType::f16};
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100, .dtype = DType::f32}), 4e-3);
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100, .dtype = DType::f16}), 2e-3);
  EXPECT_DOUBLE_EQ(product_seconds(half, h), 2e-4);
  h.is_gpu = false;
  EXPECT_DOUBLE_EQ(seconds_of(forward, h, {.seq_len = 100, .dtype = DType::f32}), 2e-3) << "a CPU's attention has one rate";
  EXPECT_DOUBLE_EQ(product_seconds(half, h), 2e-3);
  EXPECT_DOUBLE_EQ(product_seconds({.m = 1000, .n = 1000, .k = 1000}, h, true), 2e-3) << "no TF32";
}

// 2e9 operations take 2 ms on this processor; the CPU's scratch memory of 4 GB would take 4 ms.
TEST(StepCost, AGpusProductTakesNoScratchMemory) {
  Hardware h = round_hardware();
  const RecordedOp product{.what = "linear", .bytes = 4'000'000'000, .num_products = 1};
  EXPECT_DOUBLE_EQ(seconds_of(product, h), 2e-3);
  h.is_gpu = false;
  EXPECT_DOUBLE_EQ(seconds_of(product, h), 4e-3);
}

TEST(StepCost, AnotherSoftwareHasItsOwnKernels) {
  const Hardware h = round_hardware();
  const Software software{.name = "other",
                          .attention = {{"round", {.forward_tflops = 1, .backward_tflops = 1, .half_tokens = 0}}},
                          .kernels = {{"layer_norm", {.bandwidth = 0.5, .extra = 0}},
                                      {"adamw", {.bandwidth = 1, .extra = 4}},
                                      {"linear", {.bandwidth = 1, .extra = 0.5}},
                                      {"attention", {.bandwidth = 0.5, .extra = 1}}}};
  const CostOptions theirs{.software = &software};
  const auto moves = [](const char* what) { return RecordedOp{.what = what, .bytes = 1'000'000'000}; };  // 1 ms
  EXPECT_DOUBLE_EQ(seconds_of(moves("layer_norm"), h), 1e-3);
  EXPECT_DOUBLE_EQ(seconds_of(moves("layer_norm"), h, theirs), 2e-3);
  EXPECT_DOUBLE_EQ(seconds_of(moves("adamw"), h, theirs), 5e-3);
  EXPECT_DOUBLE_EQ(seconds_of(moves("add"), h, theirs), 1e-3);
  // Half of 3 operands of 4 MB on top of 2 ms.
  EXPECT_DOUBLE_EQ(seconds_of({.what = "linear", .bytes = 1'000'000'000, .num_products = 1}, h, theirs), 2e-3 + 6e-6);
  // 2e9 at 1 TF/s, and 1 GB at half the rate of memory.
  EXPECT_DOUBLE_EQ(seconds_of({.what = "attention", .bytes = 1'000'000'000, .attention_flops = 2e9}, h, theirs), 2e-3 + 2e-3);
  Hardware elsewhere = h;
  elsewhere.name = "elsewhere";
  EXPECT_THROW(static_cast<void>(seconds_of(moves("add"), elsewhere, theirs)), ConfigError);
  const Software of_no_hardware{.name = "any", .attention = {}, .kernels = software.kernels};
  EXPECT_DOUBLE_EQ(
      seconds_of({.what = "attention_backward", .attention_flops = 2e9}, elsewhere, {.seq_len = 100, .software = &of_no_hardware}), 2e-3)
      << "the hardware's";
  elsewhere.is_gpu = false;
  EXPECT_THROW(static_cast<void>(seconds_of(moves("add"), elsewhere, {.software = &of_no_hardware})), ConfigError);
}

// --- collectives ---------------------------------------------------------------------------------------------------------

// 800 MB on 8 ranks.
TEST(StepCost, CollectivesInsideANode) {
  const Hardware h = round_hardware();
  const GroupShape node{.num_ranks = 8, .num_nodes = 1, .ranks_on_node = 8};
  // 700 MB at 100 GB/s, 10 us, 7 steps.
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_gather, 800'000'000, node, 8, h), 7e-3 + 17e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::reduce_scatter, 800'000'000, node, 8, h), 7e-3 + 17e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_reduce, 800'000'000, node, 8, h), 14e-3 + 24e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_gather, 800'000'000, {}, 8, h), 0);
}

TEST(StepCost, CollectivesOverNodes) {
  Hardware h = round_hardware();
  // All 8 ranks of 2 nodes of 4: 700 MB cross each node's 10 GB/s once; 6 steps inside, 1 between.
  const GroupShape all{.num_ranks = 8, .num_nodes = 2, .ranks_on_node = 4};
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_gather, 800'000'000, all, 4, h), 70e-3 + 10e-6 + 6e-6 + 5e-6);
  h.is_gpu = false;  // a node's ranks send their half of the bytes once
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_gather, 800'000'000, all, 4, h), 40e-3 + 10e-6 + 6e-6 + 5e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_reduce, 800'000'000, all, 4, h), 80e-3 + 10e-6 + 2 * (6e-6 + 5e-6));
  h.is_gpu = true;
  // A replicate axis of one rank a node: four such groups share the node's network. 2 x 400 MB each, 4 times.
  const GroupShape replicas{.num_ranks = 2, .num_nodes = 2, .ranks_on_node = 1};
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_reduce, 800'000'000, replicas, 4, h), 0.32 + 10e-6 + 2 * 5e-6);
  // Few bytes over many nodes go by a tree: 2 x 6 levels and not 2 x 63 steps.
  const GroupShape many{.num_ranks = 64, .num_nodes = 64, .ranks_on_node = 1};
  EXPECT_NEAR(collective_seconds(Collective::all_reduce, 4, many, 1, h), 10e-6 + 12 * 5e-6, 1e-8);
}

TEST(StepCost, TheFastestProtocolIsTaken) {
  Hardware h = round_hardware();
  h.protocols.push_back({.bandwidth_share = 0.5, .base_us = 1, .in_node_step_us = 0, .network_step_us = 0});
  const GroupShape node{.num_ranks = 2, .num_nodes = 1, .ranks_on_node = 2};
  EXPECT_NEAR(collective_seconds(Collective::all_gather, 2, node, 2, h), 1e-6, 1e-9);
  EXPECT_DOUBLE_EQ(collective_seconds(Collective::all_gather, 200'000'000, node, 2, h), 1e-3 + 11e-6);
}

TEST(StepCost, TotalsAreOfOneStep) {
  StepRecord record;
  record.products = {{.m = 2, .n = 3, .k = 5}};
  record.ops = {{.kind = RecordedOp::Kind::kernel, .bytes = 100, .num_products = 1},
                {.kind = RecordedOp::Kind::mark},
                {.kind = RecordedOp::Kind::kernel, .bytes = 7, .num_products = 1},
                {.kind = RecordedOp::Kind::kernel, .bytes = 8, .attention_flops = 50, .is_backward = true},
                {.kind = RecordedOp::Kind::kernel, .num_products = 1, .attention_flops = 20, .is_recomputed = true},
                {.kind = RecordedOp::Kind::collective,
                 .bytes = 80,
                 .collective = Collective::all_gather,
                 .group = {.num_ranks = 4, .num_nodes = 2, .ranks_on_node = 2}},
                {.kind = RecordedOp::Kind::mark}};
  const StepTotals totals = totals_of(record, 1, 2, /*is_gpu=*/false);
  EXPECT_DOUBLE_EQ(totals.product_flops, 120);
  EXPECT_DOUBLE_EQ(totals.attention_flops, 70);
  EXPECT_DOUBLE_EQ(totals.recomputed_flops, 80);
  EXPECT_DOUBLE_EQ(totals.model_attention_flops, 120);
  EXPECT_DOUBLE_EQ(totals.kernel_bytes, 15);
  EXPECT_DOUBLE_EQ(totals.sent_in_node, 60);
  EXPECT_DOUBLE_EQ(totals.sent_to_network, 20);
  EXPECT_DOUBLE_EQ(totals_of(record, 1, 2, /*is_gpu=*/true).sent_to_network, 30);
  EXPECT_EQ(totals.num_kernels, 3);
  EXPECT_EQ(totals.num_collectives, 1);
}

// --- hardware files --------------------------------------------------------------------------------------------------

std::string changed(const std::string& from, const std::string& to) {
  std::string text(hardware_text("h100-80"));
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    static_cast<void>(parse_hardware(text, "f.json"));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Hardware, FilesThatComeWithMicaAreWhole) {
  for (const std::string& name : hardware_names()) {
    const Hardware h = find_hardware(name);
    EXPECT_EQ(h.name, name);
    EXPECT_LE(h.product_tflops.bf16, h.peak_tflops.bf16) << name;
    EXPECT_LE(h.product_tflops.fp32, h.peak_tflops.fp32) << name;
  }
  EXPECT_THAT(hardware_names(), ::testing::IsSupersetOf({"a100-40", "a100-80", "h100-80", "h200"}));
}

TEST(Hardware, MistakesAreNamed) {
  EXPECT_THAT(error_of(changed("\"kernel_us\": 0.9", "\"kernel_us\": -1")), HasSubstr("kernel_us is -1"));
  EXPECT_THAT(error_of(changed("\"kernel_us\": 0.9,", "")), HasSubstr("kernel_us"));
  EXPECT_THAT(error_of(changed("\"kernel_us\": 0.9", "\"kernel_us\": 0.9, \"kernal_us\": 1")),
              AllOf(HasSubstr("kernal_us"), HasSubstr("is unknown; the keys are")));
  EXPECT_THAT(error_of(changed("\"kernel_us\": \"NVIDIA", "\"other\": \"NVIDIA")), HasSubstr("kernel_us has no source"));
  EXPECT_THAT(error_of(changed("\"device\": \"gpu\"", "\"device\": \"tpu\"")), HasSubstr("expected \"gpu\" or \"cpu\""));
  EXPECT_THAT(error_of(changed("\"reserved_gib\": 2.0", "\"reserved_gib\": 200")), HasSubstr("expected less than memory_gib"));
  EXPECT_THAT(error_of("{"), HasSubstr("f.json"));
  EXPECT_THROW(static_cast<void>(find_hardware("h1000")), ConfigError);
}

// --- software files --------------------------------------------------------------------------------------------------

TEST(Software, FilesThatComeWithMicaAreWhole) {
  EXPECT_THAT(software_names(),
              ::testing::UnorderedElementsAre("fms-2024", "llm-foundry-2023", "mica", "pytorch", "pytorch-2022", "pytorch-compiled"));
  for (const std::string& name : software_names()) {
    const Software software = find_software(name);
    EXPECT_EQ(software.name, name);
    if (name == "mica") continue;  // its attention is the hardware's
    for (const char* hardware : {"a100-40", "a100-80", "h100-80", "h200"}) {
      EXPECT_LE(software.attention_on(hardware).forward_tflops, find_hardware(hardware).attention.forward_tflops) << name << hardware;
    }
  }
}

TEST(Software, FusesLayersIfItSaysSo) {
  EXPECT_FALSE(find_software("pytorch").fuses_layers);
  EXPECT_TRUE(find_software("pytorch-compiled").fuses_layers);
}

TEST(Software, MistakesAreNamed) {
  const auto error_with = [](const std::string& attention, const std::string& kernel) {
    try {
      static_cast<void>(parse_software(
          R"({"name": "x", "what": "y", "attention": {"h": {)" + attention + R"(}}, "kernels": {)" + kernel + "}}", "f.json"));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string rates = R"("forward_tflops": 1, "backward_tflops": 1, "half_tokens": 1, "source": "s")";
  EXPECT_EQ(error_with(rates, R"("add": {"bandwidth": 1, "extra": 0, "source": "s"})"), "no error");
  EXPECT_THAT(error_with(rates, R"("ad": {"bandwidth": 1, "extra": 0, "source": "s"})"), HasSubstr("expected one of adamw"));
  EXPECT_THAT(error_with(rates, R"("add": {"bandwidth": 2, "extra": 0, "source": "s"})"), HasSubstr("bandwidth is 2"));
  EXPECT_THAT(error_with(rates, R"("add": {"bandwidth": 1, "extra": 0})"), HasSubstr("has no source"));
  EXPECT_THAT(error_with(rates, R"("add": {"bandwidth": 1, "extra": 0, "source": "s", "more": 1})"), HasSubstr("is not known"));
  EXPECT_THAT(error_with(rates + R"(, "more": 1)", ""), HasSubstr("is not known"));
  EXPECT_THAT(error_with(R"("forward_tflops": 0)", ""), HasSubstr("has no source"));
  EXPECT_THAT(error_with(R"("forward_tflops": 0, "source": "s")", ""), HasSubstr("forward_tflops is 0"));
  EXPECT_THROW(static_cast<void>(find_software("torch")), ConfigError);
}

}  // namespace
}  // namespace mica::plan
