// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cudnn_attention.hpp"

// Whether cuDNN takes the graphs that Mica describes: asked for GPUs that are not here, with their heuristics and their
// compilers. What it computes with them is fused_attention_test's, on a GPU.
namespace mica::cuda {
namespace {

struct Gpu {
  const char* name;
  int multiprocessors, version, shared_memory_per_block, clock_khz, memory_clock_khz, cache_bytes;

  /// As cuDNN 9.19 writes and reads it.
  [[nodiscard]] std::string json() const {
    return fmt::format(R"({{"deviceName":"{}","maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
                       R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
                       R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
                       R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":85029158912,)"
                       R"("smClockRateKHz":{},"memClockRateKHz":{},"l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},"driverVer":13000}})",
                       name, multiprocessors, shared_memory_per_block, clock_khz, memory_clock_khz, cache_bytes, version);
  }
};

void PrintTo(const Gpu& gpu, std::ostream* out) { *out << gpu.name; }

constexpr Gpu kA100{"NVIDIA A100-SXM4-80GB", 108, 800, 166'912, 1'410'000, 1'593'000, 40 << 20};
constexpr Gpu kH100{"NVIDIA H100 80GB HBM3", 132, 900, 232'448, 1'980'000, 2'619'000, 50 << 20};

// GPT-2's, as large a part of it as kMostScoreBytes allows, and Llama's; odd sequences and heads; the smallest head.
constexpr AttentionShape kShapes[] = {{8, 1024, 12, 64}, {42, 1024, 12, 64}, {4, 2048, 32, 128, 8}, {1, 4096, 12, 64, 4},
                                      {3, 77, 5, 40},    {3, 130, 6, 72, 2}, {2, 64, 4, 8}};

class CudnnPlans : public ::testing::TestWithParam<Gpu> {
 protected:
  static std::int64_t workspace_of(const CudnnPlanRequest& request) {
    std::string why_not;
    const auto bytes = plan_cudnn_attention(GetParam().json(), request, why_not);
    EXPECT_TRUE(bytes) << why_not;
    return bytes.value_or(-1);
  }
};

std::string text_of(const CudnnPlanRequest& r) {
  return fmt::format("B={} T={} H={}/{} D={} {} {} {}{}", r.shape.batch, r.shape.seq_len, r.shape.heads, r.shape.num_kv_heads(),
                     r.shape.head_dim, dtype_name(r.dtype), r.is_packed ? "packed" : "apart", r.is_backward ? "backward" : "forward",
                     r.deterministic ? ", deterministic" : "");
}

TEST_P(CudnnPlans, AreThereForWhatModelsAskFor) {
  for (const AttentionShape& shape : kShapes) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CudnnPlanRequest request{.shape = shape, .dtype = dtype, .is_packed = shape.num_kv_heads() == shape.heads};
      const std::int64_t forward = workspace_of(request);
      EXPECT_GE(forward, 0) << text_of(request);
      EXPECT_LE(forward, 1024) << text_of(request);
      request.is_backward = true;
      const std::int64_t any_order = workspace_of(request);
      // dQ in f32, of whole tiles, for each of them that adds to it; and each head's row sums.
      const std::int64_t rows = (shape.seq_len + 127) / 128 * 128;
      const std::int64_t queries = shape.batch * shape.heads * rows * std::max<std::int64_t>(shape.head_dim, 32) * 4;
      EXPECT_GT(any_order, 0) << text_of(request);
      EXPECT_LE(any_order, 4 * queries) << text_of(request);
      request.deterministic = true;
      const std::int64_t in_order = workspace_of(request);
      EXPECT_GT(in_order, 0) << text_of(request);
      // [Note: cuDNN's attention] counts on the gradients of all scores, in 16 bits.
      EXPECT_LE(in_order, shape.batch * shape.heads * rows * rows * 2 + 2 * queries) << text_of(request);
    }
  }
}

TEST_P(CudnnPlans, AreRefusedInWordsWhereThereAreNone) {
  std::string why_not;
  EXPECT_FALSE(plan_cudnn_attention(GetParam().json(), {.shape = {1, 64, 2, 12}}, why_not));
  EXPECT_NE(why_not.find("multiple of 8"), std::string::npos) << why_not;
  EXPECT_FALSE(plan_cudnn_attention("{}", {.shape = {1, 64, 2, 64}}, why_not));
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans, ::testing::Values(kA100, kH100),
                         [](const auto& info) { return fmt::format("sm_{}", info.param.version / 10); });

}  // namespace
}  // namespace mica::cuda
