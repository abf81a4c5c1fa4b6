// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

// Sizes around the tile of 64 queries and the step of 16; head dims around a vector.
constexpr AttentionShape kShapes[] = {{1, 1, 1, 1},   {1, 2, 1, 3},   {2, 3, 2, 7},   {1, 17, 3, 16},  {2, 33, 1, 17},
                                      {1, 64, 2, 32}, {1, 65, 2, 33}, {2, 129, 2, 8}, {1, 200, 1, 64}, {1, 63, 1, 80}};

// Heads that share keys and values: in groups of 1, 2, 3 and all together.
constexpr AttentionShape kGroupedShapes[] = {{1, 1, 2, 1, 1},   {2, 3, 4, 7, 2},   {1, 33, 3, 16, 3}, {2, 65, 6, 10, 2},
                                             {1, 129, 4, 8, 1}, {3, 64, 9, 33, 3}, {1, 100, 8, 64, 2}};

std::string name_of(const AttentionShape& s) {
  return fmt::format("B={} T={} H={} D={} K={}", s.batch, s.seq_len, s.heads, s.head_dim, s.kv_heads);
}

class Attention : public KernelsTest {
 protected:
  /// q, k and v side by side.
  HostTensor packed(const AttentionShape& s, const HostTensor& q, const HostTensor& k, const HostTensor& v) {
    HostTensor all = fresh({s.batch, s.seq_len, s.qkv_width()});
    std::int64_t at = 0;
    for (std::int64_t row = 0; row < s.batch * s.seq_len; ++row) {
      for (std::int64_t i = 0; i < s.q_width(); ++i) all.set(at++, q.at(row * s.q_width() + i));
      for (std::int64_t i = 0; i < s.kv_width(); ++i) all.set(at++, k.at(row * s.kv_width() + i));
      for (std::int64_t i = 0; i < s.kv_width(); ++i) all.set(at++, v.at(row * s.kv_width() + i));
    }
    return all;
  }
};

/// In bf16 the weights of the values, and backward's gradients of the scores, may be rounded before they are multiplied (FlashAttention
/// does the same): each by up to `rounding`, so that what they sum up to errs less as a whole.
double weights_rounding(DType dtype) { return dtype == DType::bf16 ? rounding(dtype) : 0; }
double whole_error(DType dtype) { return rounding(dtype) / 2 + 1e-5; }

/// y is a mean of values in [-1, 1] with weights that err by the scores' error (D products, then exp) and the sum's (T).
double forward_error(const AttentionShape& s) { return 4 * (sum_error(s.head_dim) + static_cast<double>(s.seq_len + 8) * 0x1p-24); }

TEST_P(Attention, IsTheOracles) {
  for (const AttentionShape& s : kShapes) {
    const std::int64_t width = s.heads * s.head_dim;
    HostTensor qkv = random({s.batch, s.seq_len, 3 * width}, 1);
    Pair y({s.batch, s.seq_len, width}, dtype()), y_alone({s.batch, s.seq_len, width}, dtype());
    Pair lse({s.batch, s.heads, s.seq_len}, DType::f32);
    both([&](Kernels& kernels, bool r) {
      kernels.attention(*stream_, s, qkv, y.of(r), lse.of(r));
      kernels.attention(*stream_, s, qkv, y_alone.of(r), {});
    });
    EXPECT_TRUE(y.near(forward_error(s) + weights_rounding(dtype()))) << name_of(s);
    EXPECT_TRUE(y.near_as_a_whole(whole_error(dtype()))) << name_of(s);
    EXPECT_TRUE(lse.near(forward_error(s))) << name_of(s);
    EXPECT_TRUE(y_alone.tested.same_bits(y.tested)) << name_of(s);
  }
}

TEST_P(Attention, BackwardIsTheOracles) {
  for (const AttentionShape& s : kShapes) {
    const std::int64_t width = s.heads * s.head_dim;
    HostTensor qkv = random({s.batch, s.seq_len, 3 * width}, 1), dy = random({s.batch, s.seq_len, width}, 2);
    HostTensor y = fresh({s.batch, s.seq_len, width}), lse({s.batch, s.heads, s.seq_len}, DType::f32);
    oracle([&](Kernels& kernels) { kernels.attention(*stream_, s, qkv, y, lse); });
    Pair dqkv({s.batch, s.seq_len, 3 * width}, dtype());
    both([&](Kernels& kernels, bool r) { kernels.attention_backward(*stream_, s, dy, qkv, y, lse, dqkv.of(r)); });
    // Each of dq, dk, dv sums up to T terms of size D (dp) with P's relative error.
    const double error = 4 * static_cast<double>(s.head_dim) * forward_error(s) + sum_error(s.seq_len);
    EXPECT_TRUE(dqkv.near(error + 4 * static_cast<double>(s.head_dim) * weights_rounding(dtype()))) << name_of(s);
    for (const std::int64_t first : {std::int64_t{0}, width, 2 * width}) {  // dq, dk, dv: the largest would hide the others
      const auto columns = [&](const HostTensor& all) {
        HostTensor part = fresh({s.batch, s.seq_len, width});
        for (std::int64_t i = 0; i < part.numel(); ++i) part.set(i, all.at(i / width * 3 * width + first + i % width));
        return part;
      };
      EXPECT_TRUE(testing::near_as_a_whole(columns(dqkv.tested), columns(dqkv.reference), whole_error(dtype())))
          << name_of(s) << " " << first;
    }
  }
}

/// Queries, keys and values apart, or packed: the same bits.
TEST_P(Attention, GroupedHeadsAreTheOracles) {
  for (const AttentionShape& s : kGroupedShapes) {
    const Shape q_shape{s.batch, s.seq_len, s.q_width()}, kv_shape{s.batch, s.seq_len, s.kv_width()};
    HostTensor q = random(q_shape, 1), k = random(kv_shape, 2), v = random(kv_shape, 3);
    Pair y(q_shape, dtype()), lse({s.batch, s.heads, s.seq_len}, DType::f32);
    both([&](Kernels& kernels, bool r) { kernels.attention(*stream_, s, ConstQkv{q.view(), k.view(), v.view()}, y.of(r), lse.of(r)); });
    EXPECT_TRUE(y.near(forward_error(s) + weights_rounding(dtype()))) << name_of(s);
    EXPECT_TRUE(y.near_as_a_whole(whole_error(dtype()))) << name_of(s);
    EXPECT_TRUE(lse.near(forward_error(s))) << name_of(s);

    HostTensor qkv = packed(s, q, k, v), y_packed = fresh(q_shape);
    tested_->attention(*stream_, s, qkv, y_packed, {});
    stream_->synchronize();
    EXPECT_TRUE(y_packed.same_bits(y.tested)) << name_of(s);
  }
}

TEST_P(Attention, BackwardOfGroupedHeadsIsTheOracles) {
  for (const AttentionShape& s : kGroupedShapes) {
    const Shape q_shape{s.batch, s.seq_len, s.q_width()}, kv_shape{s.batch, s.seq_len, s.kv_width()};
    HostTensor q = random(q_shape, 1), k = random(kv_shape, 2), v = random(kv_shape, 3), dy = random(q_shape, 4);
    HostTensor y = fresh(q_shape), lse({s.batch, s.heads, s.seq_len}, DType::f32);
    const ConstQkv in{q.view(), k.view(), v.view()};
    oracle([&](Kernels& kernels) { kernels.attention(*stream_, s, in, y, lse); });
    Pair dq(q_shape, dtype()), dk(kv_shape, dtype()), dv(kv_shape, dtype());
    both([&](Kernels& kernels, bool r) { kernels.attention_backward(*stream_, s, dy, in, y, lse, Qkv{dq.of(r), dk.of(r), dv.of(r)}); });
    // As without groups, summed over the heads of one.
    const double error = static_cast<double>(s.group()) * (4 * static_cast<double>(s.head_dim) * forward_error(s) + sum_error(s.seq_len));
    for (const Pair* d : {&dq, &dk, &dv}) {
      EXPECT_TRUE(d->near(error + 4 * static_cast<double>(s.group() * s.head_dim) * weights_rounding(dtype()))) << name_of(s);
      EXPECT_TRUE(d->near_as_a_whole(whole_error(dtype()))) << name_of(s);
    }

    HostTensor qkv = packed(s, q, k, v), dqkv = fresh({s.batch, s.seq_len, s.qkv_width()});
    tested_->attention_backward(*stream_, s, dy, qkv, y, lse, dqkv);
    stream_->synchronize();
    EXPECT_TRUE(dqkv.same_bits(packed(s, dq.tested, dk.tested, dv.tested))) << name_of(s);
  }
}

TEST_P(Attention, RefusesGroupsThatDoNotDivide) {
  const AttentionShape s{1, 2, 4, 2, 3};
  HostTensor q = random({1, 2, 8}, 1), k = random({1, 2, 6}, 2), y = fresh({1, 2, 8}), lse({1, 4, 2}, DType::f32);
  EXPECT_THROW(tested_->attention(*stream_, s, ConstQkv{q.view(), k.view(), k.view()}, y, {}), Error);
  const AttentionShape fits{1, 2, 4, 2, 2};
  HostTensor wrong = random({1, 2, 6}, 2), fitting = random({1, 2, 4}, 2);
  EXPECT_THROW(tested_->attention(*stream_, fits, ConstQkv{q.view(), fitting.view(), wrong.view()}, y, {}), Error);
  EXPECT_THROW(tested_->attention_backward(*stream_, fits, q, ConstQkv{q.view(), fitting.view(), fitting.view()}, y, lse, Qkv{y.view()}),
               Error)
      << "packed gradients of inputs that are apart";
}

/// Scores of a thousand: exp() of them as they are would overflow.
TEST_P(Attention, StaysFiniteForLargeScores) {
  const AttentionShape s{1, 70, 1, 16};
  HostTensor qkv = random({1, 70, 48}, 3, -50, 50), dy = random({1, 70, 16}, 4);
  Pair y({1, 70, 16}, dtype()), lse({1, 1, 70}, DType::f32);
  both([&](Kernels& kernels, bool r) { kernels.attention(*stream_, s, qkv, y.of(r), lse.of(r)); });
  // Scores up to 40000 / 4 err by 16 * 2^-24 * 40000 = 0.04, and so do the weights of the values.
  EXPECT_TRUE(y.near(50 * 0.04));
  EXPECT_TRUE(lse.near(0.04));
  HostTensor dqkv = fresh({1, 70, 48});
  tested_->attention_backward(*stream_, s, dy, qkv, y.tested, lse.tested, dqkv);
  stream_->synchronize();
  for (std::int64_t i = 0; i < dqkv.numel(); ++i) ASSERT_TRUE(std::isfinite(dqkv.at(i))) << i;
}

/// A later token must not reach an earlier one, not even as a NaN.
TEST_P(Attention, LaterTokensAreHidden) {
  const AttentionShape s{1, 80, 1, 16};
  HostTensor qkv = random({1, 80, 48}, 3);
  HostTensor poisoned = qkv;
  for (std::int64_t i = 70 * 48; i < 80 * 48; ++i) poisoned.set(i, std::numeric_limits<double>::quiet_NaN());
  HostTensor y = fresh({1, 80, 16}), y_poisoned = y;
  tested_->attention(*stream_, s, qkv, y, {});
  tested_->attention(*stream_, s, poisoned, y_poisoned, {});
  stream_->synchronize();
  for (std::int64_t i = 0; i < 64 * 16; ++i) ASSERT_EQ(y.at(i), y_poisoned.at(i)) << "token " << i / 16;
}

INSTANTIATE_TEST_SUITE_P(Lanes, Attention, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
