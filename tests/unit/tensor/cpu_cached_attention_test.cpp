// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "kernels_testing.hpp"

// Attention over cached keys and values, which only a CPU has.
namespace mica::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSlots = 3, kCapacity = 90;

struct CachedCase {
  AttentionShape shape;
  std::vector<CachedRow> rows;
  bool rotates = false;
};

// One token behind others and alone; several behind others; first ones below, at and above what is computed by tiles; groups.
const std::vector<CachedCase>& cases() {
  static const std::vector<CachedCase> all{{{1, 1, 1, 1}, {{0, 0}}},
                                           {{2, 1, 3, 7}, {{2, 5}, {0, 89}}},
                                           {{3, 1, 2, 64}, {{1, 17}, {0, 0}, {2, 64}}},
                                           {{1, 5, 2, 33}, {{1, 3}}},
                                           {{1, 15, 1, 16}, {{2, 0}}},
                                           {{1, 16, 1, 16}, {{2, 0}}},
                                           {{2, 17, 2, 8}, {{2, 0}, {1, 6}}},
                                           {{1, 90, 3, 80}, {{0, 0}}},
                                           {{2, 1, 6, 10, 2}, {{0, 30}, {1, 1}}, true},
                                           {{1, 70, 4, 8, 1}, {{1, 0}}, true},
                                           {{2, 4, 4, 32, 2}, {{1, 0}, {0, 40}}, true}};
  return all;
}

std::string text_of(const CachedCase& c) {
  const AttentionShape& s = c.shape;
  return fmt::format("B={} T={} H={} D={} K={} past {}", s.batch, s.seq_len, s.heads, s.head_dim, s.kv_heads, c.rows[0].past);
}

std::vector<double> frequencies(const CachedCase& c) {
  std::vector<double> list;
  for (std::int64_t i = 0; c.rotates && i < c.shape.head_dim / 2; ++i) list.push_back(std::pow(100.0, -static_cast<double>(i) / 8));
  return list;
}

class CachedAttention : public KernelsTest {};

double error_of(const CachedCase& c) {
  // As attention's, and a rotation before it, whose result is rounded to the dtype.
  const double rotation = c.rotates ? static_cast<double>(c.shape.head_dim) * 4 * rounding(DType::f32) : 0;
  return 4 * (sum_error(c.shape.head_dim) + static_cast<double>(kCapacity + 8) * 0x1p-24) + rotation;
}

TEST_P(CachedAttention, IsTheOracles) {
  for (const CachedCase& c : cases()) {
    if (c.rotates && dtype() != DType::f32) continue;  // a rotation that is rounded another way moves scores by more than their error
    const AttentionShape& s = c.shape;
    const Shape kv{kSlots, kCapacity, s.kv_width()};
    HostTensor qkv = random({s.batch, s.seq_len, s.qkv_width()}, 1);
    Pair keys(random(kv, 2)), values(random(kv, 3)), y({s.batch, s.seq_len, s.q_width()}, dtype());
    both([&](Kernels& kernels, bool r) {
      kernels.attention_cached(*stream_, s, ConstQkv{.q = qkv.view()}, frequencies(c), {keys.of(r), values.of(r)}, c.rows, y.of(r));
    });
    // A prompt's weights are rounded to bf16 by attention's tiles.
    EXPECT_TRUE(y.near(error_of(c) + (dtype() == DType::bf16 ? rounding(dtype()) : 0))) << text_of(c);
    EXPECT_TRUE(y.near_as_a_whole(rounding(dtype()) / 2 + 1e-5)) << text_of(c);
    EXPECT_TRUE(keys.near(c.rotates ? 1e-6 : 0)) << text_of(c);
    EXPECT_TRUE(values.tested.same_bits(values.reference)) << text_of(c);
  }
}

/// q, k and v apart give the bits of one tensor, and a row gives the bits that it has alone.
TEST_P(CachedAttention, NeitherLayoutNorOtherRowsChangeBits) {
  const AttentionShape s{3, 4, 4, 24, 2};
  const std::vector<CachedRow> rows{{1, 9}, {2, 0}, {0, 33}};
  const std::vector<double> turn(12, 0.01);
  const Shape kv{kSlots, kCapacity, s.kv_width()};
  const Shape q_shape{s.batch, s.seq_len, s.q_width()}, kv_shape{s.batch, s.seq_len, s.kv_width()};
  HostTensor q = random(q_shape, 1), k = random(kv_shape, 2), v = random(kv_shape, 3), y = fresh(q_shape);
  HostTensor keys = random(kv, 4), values = random(kv, 5);
  HostTensor qkv = fresh({s.batch, s.seq_len, s.qkv_width()});
  std::int64_t at = 0;
  for (std::int64_t token = 0; token < s.batch * s.seq_len; ++token) {
    for (std::int64_t i = 0; i < s.q_width(); ++i) qkv.set(at++, q.at(token * s.q_width() + i));
    for (std::int64_t i = 0; i < s.kv_width(); ++i) qkv.set(at++, k.at(token * s.kv_width() + i));
    for (std::int64_t i = 0; i < s.kv_width(); ++i) qkv.set(at++, v.at(token * s.kv_width() + i));
  }
  HostTensor keys_packed = keys, values_packed = values, y_packed = y;
  tested_->attention_cached(*stream_, s, ConstQkv{q.view(), k.view(), v.view()}, turn, {keys, values}, rows, y);
  tested_->attention_cached(*stream_, s, ConstQkv{.q = qkv.view()}, turn, {keys_packed, values_packed}, rows, y_packed);
  stream_->synchronize();
  EXPECT_TRUE(y.same_bits(y_packed));
  EXPECT_TRUE(keys.same_bits(keys_packed));
  AttentionShape one = s;
  one.batch = 1;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    HostTensor alone = fresh({1, s.seq_len, s.q_width()});
    const std::int64_t numel = s.seq_len * s.qkv_width();
    tested_->attention_cached(*stream_, one, ConstQkv{.q = qkv.view().slice(b * numel, numel)}, turn, {keys_packed, values_packed},
                              {&rows[static_cast<std::size_t>(b)], 1}, alone);
    stream_->synchronize();
    for (std::int64_t i = 0; i < alone.numel(); ++i) ASSERT_EQ(alone.at(i), y.at(b * alone.numel() + i)) << b << " " << i;
  }
}

/// What follows in a longer prompt changes no bits either. By tiles: from 16 tokens on.
TEST_P(CachedAttention, ALongerPromptChangesNoBits) {
  for (const std::int64_t dim : {8, 24, 40, 64}) {
    const AttentionShape whole{1, kCapacity, 64, dim};  // many: bf16 hides most differences
    HostTensor qkv = random({1, kCapacity, whole.qkv_width()}, 1), keys = random({1, kCapacity, whole.kv_width()}, 2), values = keys;
    const auto outputs = [&](std::int64_t tokens) {
      AttentionShape s = whole;
      s.seq_len = tokens;
      HostTensor y = fresh({1, tokens, s.q_width()});
      tested_->attention_cached(*stream_, s, ConstQkv{.q = qkv.view().slice(0, tokens * s.qkv_width())}, {}, {keys, values}, {{{0, 0}}}, y);
      stream_->synchronize();
      return y;
    };
    const HostTensor all = outputs(kCapacity);
    for (const std::int64_t tokens : {16, 17, 23, 33, 47, 64, 65, 81, 89}) {
      const HostTensor y = outputs(tokens);
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        ASSERT_EQ(y.at(i), all.at(i)) << "D=" << dim << ", token " << i / whole.q_width() << " of " << tokens;
      }
    }
  }
}

TEST_P(CachedAttention, RefusesWhatDoesNotFit) {
  const AttentionShape s{2, 2, 1, 4};
  HostTensor qkv = random({2, 2, 12}, 1), keys = random({2, 6, 4}, 2), values = random({2, 6, 4}, 3), y = fresh({2, 2, 4});
  const auto refusal = [&](const std::vector<CachedRow>& rows, const std::vector<double>& turn, TensorView all_values) -> std::string {
    try {
      tested_->attention_cached(*stream_, s, ConstQkv{.q = qkv.view()}, turn, {keys, all_values}, rows, y);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal({{0, 0}, {1, 4}}, {}, values), "no error");
  EXPECT_THAT(refusal({{0, 0}, {1, 5}}, {}, values), HasSubstr("slot 1 with 5 tokens and 2 more does not fit a cache of 2 slots for 6"));
  EXPECT_THAT(refusal({{0, 0}, {2, 0}}, {}, values), HasSubstr("slot 2"));
  EXPECT_THAT(refusal({{0, -1}, {1, 0}}, {}, values), HasSubstr("-1 tokens"));
  EXPECT_THAT(refusal({{1, 0}, {1, 3}}, {}, values), HasSubstr("two sequences are in slot 1"));
  EXPECT_THAT(refusal({{1, 0}}, {}, values), HasSubstr("1 slots for 2 sequences"));
  EXPECT_THAT(refusal({{0, 0}, {1, 0}}, {0.5}, values), HasSubstr("1 frequencies for heads of 4 columns"));
  EXPECT_THAT(refusal({{0, 0}, {1, 0}}, {}, values.view().slice(0, 24)), HasSubstr("values"));
  stream_->synchronize();
}

INSTANTIATE_TEST_SUITE_P(Lanes, CachedAttention, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
