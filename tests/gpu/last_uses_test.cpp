// SPDX-License-Identifier: Apache-2.0
// What freeing memory of a GPU costs at the driver: events are recorded where somebody needs them (cuda_stream.hpp).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"

#include "cuda_emulation/cuda_emulation.hpp"

namespace mica::testing {
namespace {

constexpr std::int64_t kBytes = 4096;

class LastUses : public ::testing::Test {
 protected:
  LastUses() { cuda_emulation::reset_calls(); }

  static void use(Stream& s, const Buffer& buffer) {
    s.submit("use", {writes(buffer.data(), kBytes)}, [data = buffer.data(), stream = cuda::native(s)] {
      cuda::check(cudaMemsetAsync(data, 1, kBytes, stream), "cudaMemsetAsync");
    });
  }
  Buffer allocate(Stream& home) { return pool_->allocate(kBytes, MemoryRole::activation, home); }
  /// Memory whose last use is on `home`.
  void* use_and_free(Stream& home) {
    const Buffer buffer = allocate(home);
    use(home, buffer);
    return buffer.data();
  }
  static void expect_calls(std::int64_t records, std::int64_t waits) {
    EXPECT_EQ(cuda_emulation::calls("cudaEventRecord"), records);
    EXPECT_EQ(cuda_emulation::calls("cudaStreamWaitEvent"), waits);
    EXPECT_EQ(cuda_emulation::host_waits(), 0);
  }

  std::unique_ptr<Pool> pool_ = make_cuda_pool();
  std::unique_ptr<Stream> a_ = make_cuda_stream("a"), b_ = make_cuda_stream("b"), c_ = make_cuda_stream("c");
};

TEST_F(LastUses, MemoryThatStaysOnItsStreamNeedsNoEvent) {
  void* const first = use_and_free(*a_);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(use_and_free(*a_), first);
  expect_calls(0, 0);
}

TEST_F(LastUses, AnotherStreamWaitsOnceForAllThatWasFreedSince) {
  Buffer one = allocate(*a_), two = allocate(*a_), three = allocate(*a_);
  use(*a_, one);
  one.reset();
  use(*a_, two);
  two.reset();
  use(*a_, three);
  expect_calls(0, 0);
  const Buffer again = allocate(*b_);
  expect_calls(1, 1);
  const Buffer with_it = allocate(*b_);  // freed before that event
  expect_calls(1, 1);
  three.reset();  // nothing was enqueued between
  const Buffer later = allocate(*b_);
  expect_calls(1, 1);
}

TEST_F(LastUses, AnEventThatIsRecordedAnywayServes) {
  void* const freed = use_and_free(*a_);
  const Event of_the_schedule = a_->record();
  const Event the_same = a_->record();
  expect_calls(1, 0);
  b_->wait(of_the_schedule);
  EXPECT_EQ(allocate(*b_).data(), freed);
  expect_calls(1, 1);
}

TEST_F(LastUses, TheEventIsNoLaterThanAWaitOfItsStream) {
  const Buffer of_c = allocate(*c_);
  use(*c_, of_c);
  use_and_free(*a_);
  a_->wait(c_->record());
  expect_calls(2, 1);  // what is behind a's wait is not what the memory waits for
  const Buffer again = allocate(*b_);
  expect_calls(2, 2);
}

TEST_F(LastUses, NoEventForMemoryThatIsInUseAgain) {
  const Buffer of_c = allocate(*c_);
  use(*c_, of_c);
  use_and_free(*a_);
  const Buffer again = allocate(*a_);
  a_->wait(c_->record());
  for (int i = 0; i < 100; ++i) use(*a_, again);
  expect_calls(1, 1);
}

TEST_F(LastUses, TheEventIsNoLaterThanSomeTasks) {
  const Buffer kept = allocate(*a_);
  use_and_free(*a_);
  for (int i = 0; i < 15; ++i) use(*a_, kept);
  expect_calls(0, 0);
  for (int i = 0; i < 100; ++i) use(*a_, kept);
  expect_calls(1, 0);
}

TEST_F(LastUses, PageLockedMemoryIsTheSame) {
  const auto pinned = make_pinned_pool();
  const auto use_and_free_pinned = [&](Stream& home) { use(home, pinned->allocate(kBytes, MemoryRole::activation, home)); };
  for (int i = 0; i < 10; ++i) use_and_free_pinned(*a_);
  expect_calls(0, 0);
  use_and_free_pinned(*b_);
  expect_calls(1, 1);
}

TEST_F(LastUses, AStreamThatIsGoneIsDoneWithItsMemory) {
  void* const freed = use_and_free(*a_);
  a_.reset();
  cuda_emulation::reset_calls();  // its end waited
  const Buffer again = allocate(*b_);
  EXPECT_EQ(again.data(), freed);
  use(*b_, again);
  expect_calls(0, 0);
  EXPECT_NO_THROW(b_->synchronize());
}

TEST_F(LastUses, GivingMemoryBackToTheDriverWaitsForThem) {
  use_and_free(*a_);
  pool_->trim();
  EXPECT_EQ(cuda_emulation::calls("cudaEventRecord"), 1);
  EXPECT_EQ(cuda_emulation::calls("cudaEventSynchronize"), 1);
}

TEST_F(LastUses, AnEventThatTheDriverRefusesIsTheStreamsError) {
  use_and_free(*a_);
  cuda_emulation::fail_next("cudaEventRecord", cudaErrorLaunchFailure);
  const Buffer again = allocate(*b_);
  EXPECT_THROW(a_->synchronize(), CudaError);
  EXPECT_THROW(b_->synchronize(), CudaError);
  Stream* const streams[] = {a_.get(), b_.get()};
  drain_and_clear_errors(streams);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace mica::testing
