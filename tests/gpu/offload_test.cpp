// SPDX-License-Identifier: Apache-2.0
// What offloaded gradients cost a GPU: copies, and no kernels but one (docs/parity.md D9).
#include <gtest/gtest.h>

#include "cuda_emulation/cuda_emulation.hpp"
#include "support/parity.hpp"
#include "support/tested_gpu.hpp"
#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

constexpr std::int64_t kUnits = 3;  // two blocks and the root

struct Calls {
  ParityRun run;
  std::int64_t launches = 0, copies = 0;
};

/// Of a whole run on one GPU.
Calls calls_of_run(fsdp::CpuOffload offload, int accumulation) {
  use_gpu(0);
  RunOptions options;
  options.device = nccl_gpu();
  ParityCase c;
  c.cpu_offload = offload;
  c.accumulation = accumulation;
  Calls calls;
  cuda_emulation::reset_calls();
  run_local_ranks(1, [&](std::unique_ptr<ProcessGroup> world) { calls.run = run_sharded(std::move(world), c, options); });
  calls.launches = cuda_emulation::calls("cudaLaunchKernelEx");
  calls.copies = cuda_emulation::calls("cudaMemcpyAsync");
  return calls;
}

TEST(GpuOffload, GradientsGoToTheHostAndBackByCopiesAlone) {
  for (const int accumulation : {1, 3}) {
    const Calls on_device = calls_of_run(fsdp::CpuOffload::none, accumulation);
    const Calls offloaded = calls_of_run(fsdp::CpuOffload::gradients, accumulation);
    // A GPU by itself hands a step's first gradient over as it is; for the host it is copied once.
    EXPECT_EQ(offloaded.launches - on_device.launches, kParitySteps * kUnits);
    // There with each micro-batch, and back for the next one's sum.
    EXPECT_EQ(offloaded.copies - on_device.copies, kParitySteps * kUnits * (2 * accumulation - 1)) << accumulation;
    EXPECT_EQ(offloaded.run.losses, on_device.run.losses);
    EXPECT_EQ(offloaded.run.first_gradients, on_device.run.first_gradients);
    EXPECT_EQ(offloaded.run.parameters, on_device.run.parameters);
  }
}

}  // namespace
}  // namespace mica::testing
