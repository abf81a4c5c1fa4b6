// SPDX-License-Identifier: Apache-2.0
// What a training step asks of the driver: the host enqueues and does not wait (docs/design.md, One step as data).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "mica/comm/gpu_groups.hpp"
#include "mica/device/gpu.hpp"
#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/optimizer.hpp"
#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/fetch.hpp"

#include "cuda_emulation/cuda_emulation.hpp"
#include "support/parity.hpp"
#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

constexpr std::int64_t kSteps = 5;

struct StepCase {
  const char* name;
  fsdp::Strategy strategy;
  DType param_dtype;
  bool limit_all_gathers;
  std::int64_t num_communicators;  ///< a rank
  std::int64_t register_from_bytes = kRegisterNothing;
  std::int64_t num_registered = 0;  ///< collectives of a rank and step with registered buffers
};

class GpuStep : public ::testing::TestWithParam<StepCase> {};

/// What the process asked of the driver.
struct StepCalls {
  std::int64_t host_waits = cuda_emulation::host_waits();
  std::int64_t event_records = cuda_emulation::calls("cudaEventRecord");
  std::int64_t launches = cuda_emulation::calls("cudaLaunchKernelEx");
};

/// Of each step, all ranks together.
std::vector<StepCalls> calls_of_steps(const StepCase& c, std::unique_ptr<ProcessGroup> host) {
  use_gpu(host->rank());
  const auto pool = make_cuda_pool(), pinned = make_pinned_pool();
  const auto kernels = make_cuda_kernels(*pool);
  const int num_ranks = host->num_ranks();
  std::vector<RankPlace> places;
  for (int r = 0; r < num_ranks; ++r) places.push_back({r, "host", 0, r});
  ProcessGroup& barrier = *host;
  Mesh mesh(make_nccl_group(host->duplicate("gpus"), {.register_from_bytes = c.register_from_bytes}), MeshGeometry::make(places, {}),
            places);
  fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::threaded, [](std::string name, StreamMode) {
                                 return make_cuda_stream(std::move(name));
                               }));
  auto model = make_parity_model();
  fsdp::Options options{.strategy = c.strategy, .root = fsdp::RootOptions{.limit_all_gathers = c.limit_all_gathers}};
  options.mixed_precision.param_dtype = c.param_dtype;
  fsdp::Root& root = fsdp::auto_wrap(*model, device_mesh, options, fsdp::wrap_types({"gpt2_block"}));
  root.initialize(1);
  EXPECT_THROW((void)optim::make_adamw(root, {.precision = optim::MomentPrecision::int8}), ConfigError) << "for CPUs only";
  const auto optimizer = optim::make_adamw(root, {});
  nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};
  context.loss_in_backward = true;
  // Nobody makes a communicator once the model has begun to take memory.
  const auto cpu = make_cpu_stream("barrier", StreamMode::inlined);
  barrier.barrier(*cpu, "connected");
  const std::int64_t communicators = cuda_emulation::calls("ncclCommInitRankConfig");
  EXPECT_EQ(communicators, c.num_communicators * num_ranks);

  const Buffer ids = pinned->allocate(2 * 5 * 4, MemoryRole::workspace, context.compute);
  std::fill_n(static_cast<std::int32_t*>(ids.data()), 10, 3);
  std::vector<StepCalls> calls;
  const std::int64_t registered = cuda_emulation::registered_operations();
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    barrier.barrier(*cpu, "step");  // the count is of the whole process
    const StepCalls before;
    context.step = static_cast<std::uint64_t>(step);
    context.sequences = {0};
    nn::Tensors xs;
    for (int i = 0; i < 2; ++i) {
      xs.push_back(context.make({1, 5}, DType::i32));
      kernels->copy(context.compute, ConstTensorView{static_cast<std::byte*>(ids.data()) + i * 20, {1, 5}, DType::i32}, xs.back());
    }
    nn::Record record;
    const nn::Tensors ys = model->forward(context, std::move(xs), &record);
    const Tensor dloss = context.make({1}, DType::f32);
    kernels->fill(context.compute, dloss, 1.0);
    model->backward(context, std::move(record), {dloss});
    const optim::ClipCoefficient clip = optim::clip_coefficient(root, 1.0);
    optimizer->step({.lr = 1e-3, .grad_scale = clip.coefficient.view()});
    root.zero_grad();
    barrier.barrier(*cpu, "step");
    const StepCalls after;
    calls.push_back({after.host_waits - before.host_waits, after.event_records - before.event_records, after.launches - before.launches});
    barrier.barrier(*cpu, "counted");
  }
  context.compute.synchronize();
  EXPECT_EQ(cuda_emulation::calls("ncclCommInitRankConfig"), communicators);
  EXPECT_EQ(cuda_emulation::registered_operations() - registered, kSteps * num_ranks * c.num_registered);
  return calls;
}

TEST_P(GpuStep, TheHostWaitsInTheRateLimiterOnlyAndEventsAreFew) {
  const StepCase& c = GetParam();
  cuda_emulation::set_device_count(2);
  cuda_emulation::reset_calls();
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> host) {
    const int rank = host->rank();
    const std::vector<StepCalls> calls = calls_of_steps(c, std::move(host));
    if (rank != 0) return;
    // The first step agrees on the order of execution. Later ones gather 3 units in forward and 2 in backward and reduce 3:
    // each of the two ranks waits once, before backward's first gather, for the unit that gave up its memory first. At the
    // end of a pass nobody waits.
    for (std::size_t step = 1; step < calls.size(); ++step) {
      if (c.limit_all_gathers) {
        EXPECT_EQ(calls[step].host_waits, 2) << "step " << step + 1;
      } else {
        EXPECT_EQ(calls[step].host_waits, 0) << "step " << step + 1;
      }
      // What the schedule needs: memory that is freed costs events only where another stream gets it.
      EXPECT_LE(2 * calls[step].event_records, calls[step].launches) << "step " << step + 1;
    }
  });
  cuda_emulation::set_device_count(1);
}

/// A copy into memory that is not page-locked keeps the host inside the driver: never while the stream still works.
TEST(GpuFetch, WaitsForTheStreamBeforeItCopies) {
  use_gpu(0);
  const auto pool = make_cuda_pool();
  const auto kernels = make_cuda_kernels(*pool);
  const auto stream = make_cuda_stream("test");
  const Buffer buffer = pool->allocate(12, MemoryRole::workspace, *stream);
  const TensorView x{buffer.data(), Shape{3}, DType::f32};
  kernels->fill(*stream, x, 1.5);
  EXPECT_EQ(fetch<float>(*kernels, *stream, x), std::vector<float>(3, 1.5F));
  cuda_emulation::reset_calls();
  cuda_emulation::fail_next("cudaStreamSynchronize", cudaErrorIllegalAddress);
  EXPECT_THROW(static_cast<void>(fetch<float>(*kernels, *stream, x)), CudaError);
  EXPECT_EQ(cuda_emulation::calls("pageable copy"), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuStep,
                         ::testing::Values(StepCase{"full_shard", fsdp::Strategy::full_shard, DType::f32, false, 5},
                                           StepCase{"full_shard_bf16", fsdp::Strategy::full_shard, DType::bf16, false, 5},
                                           // 3 units gathered in forward, 2 in backward, 3 reduced.
                                           StepCase{"registered", fsdp::Strategy::full_shard, DType::f32, false, 5, 0, 8},
                                           StepCase{"registered_bf16", fsdp::Strategy::full_shard, DType::bf16, false, 5, 0, 8},
                                           StepCase{"limited", fsdp::Strategy::full_shard, DType::f32, true, 5},
                                           StepCase{"no_shard", fsdp::Strategy::no_shard, DType::f32, false, 6}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mica::testing
