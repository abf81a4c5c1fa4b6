// SPDX-License-Identifier: Apache-2.0
// Process groups for memory of GPUs. The same sources run on a GPU (label gpu), where NCCL has one rank, and on the
// emulation of some, where it has several.
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "mica/comm/gpu_groups.hpp"
#include "mica/core/error.hpp"
#include "mica/device/gpu.hpp"

#include "support/collective_checks.hpp"
#include "support/device_data_group.hpp"
#include "support/failing_group.hpp"
#include "testing/local_group.hpp"

#if MICA_GPU_IS_EMULATED
#include "cuda_emulation/cuda_emulation.hpp"
#include "support/reaching_group.hpp"
#endif

namespace mica::testing {
namespace {

constexpr std::int64_t kNumels[] = {0, 1, 3, 257, 5000};

class GpuGroups : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(list_gpus().empty()) << why_no_gpu();
    use_gpu(0);
  }
};

using StagedGroups = GpuGroups;

TEST_P(StagedGroups, EveryCollectiveIsTheFoldInRankOrder) {
  run_local_ranks(GetParam(), [](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    const auto pool = make_cuda_pool(), pinned = make_pinned_pool();
    const auto stream = make_cuda_stream("test");
    const auto group = make_staged_group(std::move(host), *pinned);
    DeviceDataGroup on_device(*group, *pool);
    check_collectives(on_device, *stream, kNumels, true);
    EXPECT_EQ(pool->stats().current, 0);
    EXPECT_EQ(pinned->stats().current, 0) << "page-locked memory was not given back";
  });
}

TEST_P(StagedGroups, GroupsOfGroupsAndOfTheHost) {
  run_local_ranks(GetParam(), [](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    const auto pool = make_cuda_pool(), pinned = make_pinned_pool();
    const auto stream = make_cuda_stream("test"), other = make_cuda_stream("other");
    const auto cpu = make_cpu_stream("cpu", StreamMode::inlined);
    const auto group = make_staged_group(std::move(host), *pinned);
    const auto twin = group->duplicate("twin");
    const auto half = group->split(group->rank() % 2, group->rank(), "half");
    EXPECT_EQ(twin->num_ranks(), group->num_ranks());
    EXPECT_EQ(half->num_ranks(), (group->num_ranks() + (group->rank() % 2 == 0 ? 1 : 0)) / 2);
    DeviceDataGroup a(*twin, *pool), b(*half, *pool);
    check_all_reduce(a, *stream, 100, DType::f32, ReduceOp::sum);
    b.barrier(*other, "meet");
    other->synchronize();
    // Memory of the host goes by the host's group.
    check_all_gather(host_group_of(*group), *cpu, 7, DType::f32, false);
  });
}

TEST_F(GpuGroups, AFailureOfTheWireIsTheStreamsAndNothingHangs) {
  run_local_ranks(2, [](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    const auto pool = make_cuda_pool(), pinned = make_pinned_pool();
    const auto stream = make_cuda_stream("test");
    FailurePlan plan(0);
    const auto group = make_staged_group(std::make_unique<FailingGroup>(std::move(host), plan), *pinned);
    DeviceDataGroup on_device(*group, *pool);
    check_all_reduce(on_device, *stream, 100, DType::f32, ReduceOp::sum);
    plan.arm();
    Data data(100, DType::f32);
    data.fill_as(group->rank());
    on_device.all_reduce(*stream, "lost", data.view(), ReduceOp::sum);
    EXPECT_THROW(stream->synchronize(), InjectedFailure);
    plan.disarm();
    stream->drain_and_clear_error();
    check_all_reduce(on_device, *stream, 100, DType::f32, ReduceOp::sum);
  });
}

#if MICA_GPU_IS_EMULATED
constexpr bool kCanHaveSeveralGpus = true;
void set_gpus(int count) { cuda_emulation::set_device_count(count); }
#else
constexpr bool kCanHaveSeveralGpus = false;
void set_gpus(int) {}
#endif

#if MICA_GPU_IS_EMULATED
TEST_P(StagedGroups, AHostThatTakesGpuMemoryGetsItForWhatOnlyMoves) {
  run_local_ranks(GetParam(), [](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    const auto pool = make_cuda_pool(), pinned = make_pinned_pool();
    const auto stream = make_cuda_stream("test");
    Reached reached;
    const auto group =
        make_staged_group(std::make_unique<ReachingGroup>(std::move(host), reached), *pinned, {.host_takes_gpu_memory = true});
    DeviceDataGroup on_device(*group, *pool);
    check_collectives(on_device, *stream, kNumels, true);  // the same bits as by way of the host
    if (group->num_ranks() == 1) return;
    const auto calls_of = [&](Collective kind) { return group->counts().calls[static_cast<std::size_t>(kind)]; };
    EXPECT_EQ(reached.moves_of_gpu_memory, calls_of(Collective::all_gather) + calls_of(Collective::broadcast));
    EXPECT_EQ(reached.others_of_gpu_memory, 0) << "sums are folded on the host";
    EXPECT_EQ(reached.of_host_memory,
              calls_of(Collective::reduce_scatter) + calls_of(Collective::all_reduce) + calls_of(Collective::all_to_all));
    // Nothing is staged for what only moves, in a group of the group either.
    pinned->reset_peak();
    const auto twin = group->duplicate("twin");
    DeviceDataGroup twin_on_device(*twin, *pool);
    check_all_gather(twin_on_device, *stream, 257, DType::f32, false);
    check_broadcast(twin_on_device, *stream, 257, DType::f32, 1);
    EXPECT_EQ(pinned->stats().peak, 0);
  });
}
#endif

using NcclGroups = GpuGroups;

TEST_P(NcclGroups, EveryCollective) {
  const int num_ranks = GetParam();
  if (num_ranks > static_cast<int>(list_gpus().size()) && !kCanHaveSeveralGpus) {
    GTEST_SKIP() << "NCCL takes one GPU a rank; " << num_ranks << " ranks are tested with emulated GPUs";
  }
  set_gpus(num_ranks);
  run_local_ranks(num_ranks,
                  [](std::unique_ptr<ProcessGroup> host) {
                    use_gpu(host->rank());
                    const auto pool = make_cuda_pool();
                    const auto stream = make_cuda_stream("test");
                    const auto group = make_nccl_group(std::move(host), {});
                    {
                      DeviceDataGroup on_device(*group, *pool);
                      check_collectives(on_device, *stream, kNumels, true, SumOrder::any);
                      const auto twin = group->duplicate("twin");
                      const auto half = group->split(group->rank() % 2, group->rank(), "half");
                      DeviceDataGroup a(*twin, *pool), b(*half, *pool);
                      check_all_reduce(a, *stream, 100, DType::bf16, ReduceOp::max);
                      check_all_gather(b, *stream, 33, DType::f32, true);
                    }
                    EXPECT_EQ(pool->stats().current, 0);
                    EXPECT_GE(group->busy_ms(), 0);
                  },
                  {.communicates_alone = true});
  set_gpus(1);
}

#if MICA_GPU_IS_EMULATED
/// What two ranks' collectives after `spoil` end with, on each rank.
std::vector<std::string> errors_of(const std::function<void(int rank)>& spoil, std::chrono::milliseconds timeout) {
  set_gpus(2);
  std::vector<std::string> errors(2);
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> host) {
    const int rank = host->rank();
    use_gpu(rank);
    const auto pool = make_cuda_pool();
    const auto stream = make_cuda_stream("test");
    const auto group = make_nccl_group(std::move(host), {.timeout = timeout});
    const Buffer data = pool->allocate(400, MemoryRole::communication, *stream);
    const TensorView view{data.data(), Shape{100}, DType::f32};
    group->all_reduce(*stream, "good", view, ReduceOp::sum);
    stream->synchronize();
    spoil(rank);
    const auto begin = std::chrono::steady_clock::now();
    group->all_reduce(*stream, "h.3", view, ReduceOp::sum);
    while (errors[static_cast<std::size_t>(rank)].empty() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
      try {
        stream->synchronize();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      } catch (const NcclError& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    }
  });
  set_gpus(1);
  return errors;
}

TEST_F(GpuGroups, ACollectiveThatHangsEndsInOneMessage) {
  const auto errors = errors_of(
      [](int rank) {
        if (rank == 1) cuda_emulation::hang_next_nccl_operation(1);
      },
      std::chrono::milliseconds(300));
  for (const char* part : {"(rank 1 of 2)", "all_reduce 'h.3' of 400 bytes", "not done within", "mesh.timeout"}) {
    EXPECT_NE(errors[1].find(part), std::string::npos) << errors[1];
  }
  EXPECT_FALSE(errors[0].empty());
}

TEST_F(GpuGroups, AnAsynchronousErrorEndsInOneMessage) {
  const auto errors = errors_of([](int rank) { cuda_emulation::fail_next_nccl_operation(rank, 6); }, std::chrono::seconds(20));
  for (int rank = 0; rank < 2; ++rank) {
    const std::string& text = errors[static_cast<std::size_t>(rank)];
    for (const std::string& part : {fmt::format("(rank {} of 2)", rank), std::string("all_reduce 'h.3'")}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST_F(GpuGroups, AfterAnAbortEverythingFailsAtOnceWithTheFirstError) {
  set_gpus(2);
  cuda_emulation::reset_calls();
  run_local_ranks(2, [](std::unique_ptr<ProcessGroup> host) {
    const int rank = host->rank();
    use_gpu(rank);
    const auto pool = make_cuda_pool();
    const auto stream = make_cuda_stream("test");
    const auto group = make_nccl_group(std::move(host), {.timeout = std::chrono::seconds(20)});
    const auto twin = group->duplicate("twin"), late = group->duplicate("late");
    connect_groups({group.get(), twin.get()});
    const Buffer data = pool->allocate(400, MemoryRole::communication, *stream);
    const TensorView view{data.data(), Shape{100}, DType::f32};
    const auto error_of = [&](auto&& action) {
      try {
        action();
      } catch (const NcclError& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    cuda_emulation::fail_next_nccl_operation(rank, 6);
    group->all_reduce(*stream, "h.3", view, ReduceOp::sum);
    std::string first;
    for (int i = 0; i < 4000 && first.empty(); ++i) {
      first = error_of([&] { stream->synchronize(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_NE(first.find("all_reduce 'h.3'"), std::string::npos) << first;
    // A caller that goes on all the same: with this group, another one, and one that is not connected yet.
    for (ProcessGroup* each : {group.get(), twin.get()}) {
      stream->drain_and_clear_error();
      each->all_reduce(*stream, "h.4", view, ReduceOp::sum);
      const std::string later = error_of([&] { stream->synchronize(); });
      EXPECT_NE(later.find("all_reduce 'h.4'"), std::string::npos) << later;
      EXPECT_NE(later.find(first), std::string::npos) << later;
    }
    EXPECT_NE(error_of([&] { connect_groups({late.get()}); }).find(first), std::string::npos);
  });
  EXPECT_EQ(cuda_emulation::calls("ncclAllReduce"), 2);
  EXPECT_EQ(cuda_emulation::calls("ncclCommInitRankConfig"), 4);
  EXPECT_EQ(cuda_emulation::calls("ncclCommAbort"), 4);
  EXPECT_EQ(cuda_emulation::calls("ncclCommFinalize"), 0);
  set_gpus(1);
}

TEST_F(GpuGroups, LargeBuffersAreRegisteredOnceForAsLongAsTheirBlocksLast) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  cuda_emulation::reset_calls();
  run_local_ranks(1,
                  [](std::unique_ptr<ProcessGroup> host) {
                    use_gpu(0);
                    auto pool = make_cuda_pool();
                    const auto stream = make_cuda_stream("test");
                    const auto control = host->duplicate("control");
                    auto group = make_nccl_group(std::move(host), {.register_from_bytes = kMiB});
                    const auto allocate = [&](ProcessGroup& from, std::int64_t bytes) {
                      return from.allocate(*pool, bytes, MemoryRole::unsharded_param, *stream);
                    };
                    {
                      const Buffer early = allocate(*group, 3 * kMiB);
                      EXPECT_EQ(cuda_emulation::registered_now(), 0) << "not connected";
                    }
                    connect_groups({group.get()});
                    auto other = group->duplicate("other");
                    connect_groups({other.get()});

                    Buffer buffer = allocate(*group, 3 * kMiB), small = allocate(*group, kMiB - 1), empty = allocate(*group, 0);
                    EXPECT_EQ(pool->stats().current, 4 * kMiB - 1);
                    EXPECT_EQ(cuda_emulation::registered_now(), 1);
                    const std::int64_t before = cuda_emulation::registered_operations();
                    group->all_reduce(*stream, "registered", {buffer.data(), Shape{100}, DType::f32}, ReduceOp::sum);
                    group->all_reduce(*stream, "not", {small.data(), Shape{100}, DType::f32}, ReduceOp::sum);
                    EXPECT_EQ(cuda_emulation::registered_operations(), before + 1);
                    buffer.reset();
                    buffer = allocate(*group, 3 * kMiB - 5);  // the same block
                    EXPECT_EQ(cuda_emulation::calls("ncclCommRegister"), 1);
                    buffer.reset();
                    buffer = allocate(*other, 3 * kMiB);
                    EXPECT_EQ(cuda_emulation::registered_now(), 2) << "with both groups";
                    buffer.reset();
                    small.reset();
                    pool->trim();  // the emulation ends the process if the memory goes first
                    EXPECT_EQ(cuda_emulation::registered_now(), 0);
                    EXPECT_EQ(cuda_emulation::calls("ncclCommDeregister"), 2);

                    // Whatever ends first: the group, the communication, or the pool.
                    buffer = allocate(*group, 3 * kMiB);
                    stream->synchronize();
                    group.reset();
                    EXPECT_EQ(cuda_emulation::registered_now(), 0);
                    buffer = allocate(*other, 5 * kMiB);
                    cuda_emulation::fail_next_nccl_operation(0, 6);
                    other->all_reduce(*stream, "lost", {buffer.data(), Shape{100}, DType::f32}, ReduceOp::sum);
                    for (int i = 0; i < 4000 && cuda_emulation::registered_now() > 0; ++i)
                      std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    EXPECT_EQ(cuda_emulation::registered_now(), 0);
                    stream->drain_and_clear_error();
                    buffer.reset();
                    pool->trim();
                    group = make_nccl_group(control->duplicate("third"), {.register_from_bytes = 0});
                    connect_groups({group.get()});
                    buffer = allocate(*group, 1);
                    EXPECT_EQ(cuda_emulation::registered_now(), 1);
                    buffer.reset();
                    pool.reset();
                    EXPECT_EQ(cuda_emulation::registered_now(), 0);

                    pool = make_cuda_pool();
                    group = make_nccl_group(control->duplicate("fourth"), {.register_from_bytes = kRegisterNothing});
                    connect_groups({group.get()});
                    buffer = allocate(*group, 3 * kMiB);
                    EXPECT_EQ(cuda_emulation::registered_now(), 0);
                    buffer.reset();
                  },
                  {.communicates_alone = true});
}

TEST_F(GpuGroups, TwoRanksOnOneGpuAreRefusedByNccl) {
  EXPECT_THROW(run_local_ranks(2,
                               [](std::unique_ptr<ProcessGroup> host) {
                                 use_gpu(0);
                                 const auto group = make_nccl_group(std::move(host), {.timeout = std::chrono::seconds(5)});
                                 connect_groups({group.get()});
                               }),
               NcclError);
}
#endif

INSTANTIATE_TEST_SUITE_P(Ranks, StagedGroups, ::testing::Values(1, 2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, NcclGroups, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace mica::testing
