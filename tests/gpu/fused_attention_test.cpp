// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "mica/tensor/cuda_kernels.hpp"

#include "../unit/tensor/kernels_testing.hpp"

// cuDNN's attention against Mica's own, which the kernels' tests hold against the oracle. Needs a GPU.
namespace mica::testing {
namespace {

class FusedAttention : public ::testing::TestWithParam<DType> {
 protected:
  FusedAttention()
      : pool_(device::make_pool()),
        stream_(device::make_stream(StreamMode::inlined)),
        fused_(make_cuda_kernels(*pool_)),
        any_order_(make_cuda_kernels(*pool_, {.reproducible = false})),
        own_(make_cuda_kernels(*pool_, {.use_cudnn = false})) {}

  [[nodiscard]] HostTensor random(Shape shape, unsigned seed) const { return HostTensor::random(shape, GetParam(), seed); }

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernels> fused_, any_order_, own_;
};

// Heads of their own and shared, whole tiles and not, packed; the last two take several parts in the backward, of the
// very last all but the first part's lse begins at an odd place.
constexpr AttentionShape kShapes[] = {{2, 64, 3, 64},      {1, 129, 2, 8},  {3, 200, 4, 40, 2},   {1, 1024, 12, 64},
                                      {2, 300, 8, 128, 2}, {2, 64, 2, 256}, {1, 4096, 12, 64, 4}, {2, 4097, 9, 64}};

/// cuDNN rounds weights and their gradients to the dtype before it multiplies with them: half a unit of 1 each.
double weight_error(DType dtype) { return rounding(dtype) / 4; }

TEST_P(FusedAttention, IsMicasOwn) {
  ASSERT_NE(fused_->description().find("attention by cuDNN"), std::string::npos) << fused_->description();
  for (const AttentionShape& s : kShapes) {
    const Shape packed{s.batch, s.seq_len, s.qkv_width()}, width{s.batch, s.seq_len, s.q_width()};
    HostTensor qkv = random(packed, 1), dy = random(width, 2);
    HostTensor y = random(width, 3), y_own = y, y_alone = y, lse({s.batch, s.heads, s.seq_len}, DType::f32), lse_own = lse;
    HostTensor d = random(packed, 4), d_own = d, d_again = d, d_any_order = d;
    fused_->attention(*stream_, s, qkv, y, lse);
    fused_->attention(*stream_, s, qkv, y_alone, {});
    own_->attention(*stream_, s, qkv, y_own, lse_own);
    fused_->attention_backward(*stream_, s, dy, qkv, y_own, lse_own, d);
    fused_->attention_backward(*stream_, s, dy, qkv, y_own, lse_own, d_again);
    any_order_->attention_backward(*stream_, s, dy, qkv, y_own, lse_own, d_any_order);
    own_->attention_backward(*stream_, s, dy, qkv, y_own, lse_own, d_own);
    stream_->synchronize();

    const std::string what = fmt::format("B={} T={} H={} D={} K={}", s.batch, s.seq_len, s.heads, s.head_dim, s.kv_heads);
    EXPECT_TRUE(near(y, y_own, weight_error(GetParam()))) << what;
    EXPECT_TRUE(near(lse, lse_own, 1e-4)) << what << ": cuDNN's stats are the natural logarithm";
    EXPECT_TRUE(y_alone.same_bits(y)) << what;
    // A score's gradient is at most 2 D of its weight, times 1/sqrt(D); a column of weights adds up to log T + 1.
    const auto d_error = static_cast<double>(s.group()) * weight_error(GetParam()) * 2 * std::sqrt(static_cast<double>(s.head_dim)) *
                         (std::log(static_cast<double>(s.seq_len)) + 1);
    EXPECT_TRUE(near(d, d_own, d_error)) << what;
    EXPECT_TRUE(near(d_any_order, d_own, d_error)) << what;
    EXPECT_TRUE(d_again.same_bits(d)) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, FusedAttention, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace mica::testing
