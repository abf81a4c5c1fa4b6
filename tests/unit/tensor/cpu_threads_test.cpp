// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <set>

#include "kernels_testing.hpp"

// How a CPU's kernels use OpenMP's threads.
namespace mica::testing {
namespace {

constexpr int kTeam = device::kManyThreads == 1 ? 1 : 8;  // one under ThreadSanitizer, as elsewhere

/// Ids of this process's threads.
std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ids.insert(entry.path().filename());
  return ids;
}

class CpuThreads : public KernelsTest {};  // which restores the number of threads

/// gcc's runtime ends the threads that a team leaves out, so a small loop between larger ones would create threads again and again.
TEST_P(CpuThreads, AreTheSameForLoopsOfAnySize) {
  omp_set_num_threads(kTeam);
  HostTensor large({8 * 16384}, dtype()), small({3 * 16384}, dtype());
  const auto fill = [&](HostTensor& tensor) {
    tested_->fill(*stream_, tensor, 1);
    stream_->synchronize();
  };
  fill(large);
  const std::set<std::string> before = thread_ids();
  EXPECT_GE(std::ssize(before), kTeam);
  for (int i = 0; i < 3; ++i) {
    fill(small);
    fill(large);
    EXPECT_EQ(thread_ids(), before);
  }
}

/// Sequences of other sizes than the parts of the work: the bits of one thread.
TEST_P(CpuThreads, ShareDropoutOfManySequences) {
  for (const std::int64_t row : {1000, 16384, 50001}) {
    HostTensor x = random({7, row}, 1), one = fresh({7, row}), many = fresh({7, row});
    const std::vector<std::int64_t> sequences{3, 1, 4, 15, 9, 2, 6};
    const RandomKey key{.seed = 5};
    omp_set_num_threads(1);
    tested_->dropout(*stream_, x, 0.4, key, sequences, one);
    omp_set_num_threads(kTeam);
    tested_->dropout(*stream_, x, 0.4, key, sequences, many);
    stream_->synchronize();
    EXPECT_TRUE(many.same_bits(one)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, CpuThreads, ::testing::Values(Lane{StreamMode::inlined, 1, DType::f32}), lane_name);

}  // namespace
}  // namespace mica::testing
