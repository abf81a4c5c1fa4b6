// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/attention.hpp"
#include "../../../src/tensor/cpu/attention_shares.hpp"
#include "kernels_testing.hpp"

// How attention is shared among a CPU's threads.
namespace mica::testing {
namespace {

constexpr AttentionShape kSharedShapes[] = {{1, 1, 1, 1},     {1, 64, 12, 1},    {4, 256, 12, 1},    {1, 1000, 1, 16},
                                            {1, 1024, 12, 8}, {2, 130, 6, 8, 2}, {1, 200, 9, 10, 3}, {3, 65, 4, 4, 1}};
constexpr int kThreadCounts[] = {1, 2, 3, 5, 7, 12, 16, 48};

std::string text_of(const AttentionShape& s, int threads) {
  return fmt::format("B={} T={} H={} D={} K={}, {} threads", s.batch, s.seq_len, s.heads, s.head_dim, s.kv_heads, threads);
}

TEST(AttentionShares, EachQueryOnceAndEachThreadAboutAsMuch) {
  for (const AttentionShape& s : kSharedShapes) {
    for (const int num_threads : kThreadCounts) {
      const cpu::AttentionShares shares(s, num_threads);
      const std::int64_t tiles = divide_up(s.seq_len, cpu::kPanel), work = s.batch * s.heads * tiles * tiles;
      ASSERT_EQ(shares.num_threads(), std::min<std::int64_t>(num_threads, s.batch * s.heads * tiles)) << text_of(s, num_threads);
      std::int64_t next = 0;
      for (int thread = 0; thread < shares.num_threads(); ++thread) {
        std::int64_t own = 0;
        shares.for_each_head(thread, [&](std::int64_t head, std::int64_t first, std::int64_t last) {
          ASSERT_EQ(head * s.seq_len + first, next) << text_of(s, num_threads);
          ASSERT_LT(first, last);
          next = head * s.seq_len + last;
          const std::int64_t begin = first / cpu::kPanel, end = divide_up(last, cpu::kPanel);
          own += end * end - begin * begin;
        });
        EXPECT_EQ(own == 0, shares.is_empty(thread));
        EXPECT_LE(own, work / shares.num_threads() + 2 * tiles) << text_of(s, num_threads) << ": thread " << thread;
      }
      EXPECT_EQ(next, s.batch * s.heads * s.seq_len) << text_of(s, num_threads);
    }
  }
}

TEST(AttentionShares, GroupsThatThreadsShare) {
  const AttentionShape shape{1, 256, 6, 8, 3};  // three groups of two heads of four tiles: 16 + 16 of work each, 24 for a thread
  const cpu::AttentionShares shares(shape, 4);
  std::vector<std::vector<std::int64_t>> shared;
  shares.for_each_shared_group([&](std::int64_t group, int first, int last) { shared.push_back({group, first, last}); });
  EXPECT_EQ(shared, (std::vector<std::vector<std::int64_t>>{{0, 0, 2}, {1, 1, 3}, {2, 2, 4}}));
  EXPECT_FALSE(shares.begins_inside(0));
  for (int thread = 1; thread < 4; ++thread) EXPECT_TRUE(shares.begins_inside(thread)) << thread;
  for (const auto& [thread, sums] : std::vector<std::pair<int, int>>{{0, 0}, {1, 1}, {2, 3}, {3, 5}, {4, 6}}) {
    EXPECT_EQ(shares.num_sums_before(thread), sums) << thread;
  }
}

TEST(AttentionShares, ThreadsWithoutAnyTile) {
  const cpu::AttentionShares shares({1, 1000, 1, 16}, 16);  // one head of sixteen tiles, the later ones each as much as a thread is to do
  std::vector<std::vector<std::int64_t>> shared;
  shares.for_each_shared_group([&](std::int64_t group, int first, int last) { shared.push_back({group, first, last}); });
  EXPECT_EQ(shared, (std::vector<std::vector<std::int64_t>>{{0, 0, 16}}));
  std::vector<int> empty;
  for (int thread = 0; thread < 16; ++thread) {
    if (shares.is_empty(thread)) empty.push_back(thread);
  }
  EXPECT_EQ(empty, (std::vector<int>{7, 10, 12, 14}));
  EXPECT_TRUE(shares.are_groups_shared());
  EXPECT_FALSE(cpu::AttentionShares({4, 256, 12, 64, 4}, 8).are_groups_shared());
}

class SharedAttention : public KernelsTest {};  // which restores the number of threads

/// Long sequences would take gigabytes on many threads, but they may take as much as some of the model's own tensors.
TEST_P(SharedAttention, TakesNoMoreMemoryThanItsLimit) {
  const auto bytes = [&](const AttentionShape& shape, int num_threads) {
    omp_set_num_threads(num_threads);
    return cpu::attention_backward_scratch_bytes(shape, dtype());
  };
  for (const std::int64_t seq_len : {2048, 8192, 32768}) {
    const AttentionShape shape{1, seq_len, 32, 128, 8};
    const std::int64_t of_one = bytes(shape, 8) / 8, tensors = 4 * seq_len * 128 * (32 + 8 + 8 + 32 + 32);
    const std::int64_t limit = std::max(2 * tensors, std::int64_t{512} << 20);
    EXPECT_LE(bytes(shape, 96), limit);
    EXPECT_GE(bytes(shape, 96), std::min(96 * of_one, limit) / 10 * 9) << "as many threads as fit";
  }
}

/// Threads that share heads change neither y nor dq, and of dk and dv only the order of their sums.
TEST_P(SharedAttention, IsThatOfOneThread) {
  for (const AttentionShape& s : kSharedShapes) {
    const Shape q_shape{s.batch, s.seq_len, s.q_width()}, kv_shape{s.batch, s.seq_len, s.kv_width()};
    HostTensor q = random(q_shape, 1), k = random(kv_shape, 2), v = random(kv_shape, 3), dy = random(q_shape, 4);
    const ConstQkv in{q.view(), k.view(), v.view()};
    struct Results {
      HostTensor y, lse, dq, dk, dv;
    };
    const auto with_threads = [&](int num_threads) {
      omp_set_num_threads(num_threads);
      Results r{fresh(q_shape), {{s.batch, s.heads, s.seq_len}, DType::f32}, fresh(q_shape), fresh(kv_shape), fresh(kv_shape)};
      tested_->attention(*stream_, s, in, r.y, r.lse);
      tested_->attention_backward(*stream_, s, dy, in, r.y, r.lse, Qkv{r.dq.view(), r.dk.view(), r.dv.view()});
      stream_->synchronize();
      return r;
    };
    const Results one = with_threads(1);
    for (const int num_threads : kThreadCounts) {
      if (num_threads > 1 && device::kManyThreads == 1) continue;  // under ThreadSanitizer
      const Results many = with_threads(num_threads), again = with_threads(num_threads);
      EXPECT_TRUE(many.y.same_bits(one.y)) << text_of(s, num_threads);
      EXPECT_TRUE(many.lse.same_bits(one.lse)) << text_of(s, num_threads);
      EXPECT_TRUE(many.dq.same_bits(one.dq)) << text_of(s, num_threads);
      EXPECT_TRUE(many.dk.same_bits(again.dk)) << text_of(s, num_threads);
      EXPECT_TRUE(many.dv.same_bits(again.dv)) << text_of(s, num_threads);
      EXPECT_TRUE(near_as_a_whole(many.dk, one.dk, rounding(dtype()) / 4 + 1e-6)) << text_of(s, num_threads);
      EXPECT_TRUE(near_as_a_whole(many.dv, one.dv, rounding(dtype()) / 4 + 1e-6)) << text_of(s, num_threads);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, SharedAttention,
                         ::testing::Values(Lane{StreamMode::threaded, 1, DType::f32}, Lane{StreamMode::inlined, 1, DType::bf16}),
                         lane_name);

}  // namespace
}  // namespace mica::testing
