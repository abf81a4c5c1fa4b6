// SPDX-License-Identifier: Apache-2.0
// Training on a GPU: against the CPU, and sharded over ranks that share the GPU against one rank. The same sources run on
// a GPU (label gpu) and on the emulation of one (tests/cuda_emulation).
#include "support/parity.hpp"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "support/tested_gpu.hpp"
#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

struct Precision {
  DType param_dtype;
  double tolerance;  // of losses
};

class GpuParity : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(list_gpus().empty()) << why_no_gpu();
    use_gpu(0);
  }
};

TEST_F(GpuParity, OneGpuTrainsAsTheCpuDoes) {
  for (const auto model : {ParityCase::Model::gpt2, ParityCase::Model::llama}) {
    for (const Precision precision : {Precision{DType::f32, 1e-5}, Precision{DType::bf16, 1e-2}}) {
      const ParityRun cpu = run_plain(1, 3, precision.param_dtype, model);
      const ParityRun gpu = run_plain(1, 3, precision.param_dtype, model, staged_gpu());
      ASSERT_EQ(cpu.losses.size(), gpu.losses.size());
      for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
        for (std::size_t m = 0; m < cpu.losses[step].size(); ++m) {
          EXPECT_NEAR(gpu.losses[step][m], cpu.losses[step][m], precision.tolerance * std::abs(cpu.losses[step][m]))
              << dtype_name(precision.param_dtype) << " step " << step + 1 << " micro-batch " << m;
        }
      }
    }
  }
}

class StagedRanks : public GpuParity, public ::testing::WithParamInterface<int> {};

TEST_P(StagedRanks, EveryStrategyIsTheOneRankRun) {
  const int num_ranks = GetParam();
  std::vector<ParityCase> cases = parity_matrix(num_ranks);
  cases.resize(cases.size() / 108);  // every strategy and grid with two of its settings
  std::map<std::pair<int, DType>, ParityRun> plain;
  for (const ParityCase& c : cases) {
    const auto key = std::pair(c.accumulation, c.param_dtype);
    if (!plain.contains(key)) plain[key] = run_plain(num_ranks, c.accumulation, c.param_dtype, c.model, staged_gpu());
    run_local_ranks(num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
      use_gpu(0);
      const int rank = world->rank();
      RunOptions options;
      options.device = staged_gpu();
      StepCounts counts;
      options.counts = &counts;
      const ParityRun run = run_sharded(std::move(world), c, options);
      if (rank != 0) return;
      expect_parity(plain[key], run, c);
      expect_counts(counts, c, num_ranks);
    });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, StagedRanks, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace mica::testing
