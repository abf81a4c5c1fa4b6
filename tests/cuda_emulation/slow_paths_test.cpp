// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/device/gpu.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "cuda_emulation.hpp"

// [Note: slow paths] What is noted where a library refuses, which only the emulation can be told to do; and what is
// not.
namespace mica::cuda_emulation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Products of kSide^3 multiply-adds are just large enough.
constexpr std::int64_t kSide = 256;

class SlowPaths : public ::testing::Test {
 protected:
  TensorView zeros(Shape shape, DType dtype = DType::bf16) {
    buffers_.push_back(pool_->allocate(shape.numel() * dtype_bytes(dtype), MemoryRole::activation, *stream_));
    const TensorView view(buffers_.back().data(), shape, dtype);
    kernels_->fill(*stream_, view, 0);
    return view;
  }
  std::vector<std::string> kinds() const {
    std::vector<std::string> kinds;
    for (const SlowPath& path : slow_paths(*kernels_)) kinds.push_back(path.kind);
    return kinds;
  }
  void refuse_algorithms(int count) { fail_next("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED, 0, count); }
  void linear(std::int64_t side) {
    kernels_->linear(*stream_, zeros({side, side}), zeros({side, side}), zeros({side}), zeros({side, side}));
  }
  void all_products(std::int64_t width) {
    const TensorView x = zeros({kSide, kSide}), w = zeros({width, kSide}), bias = zeros({width}), y = zeros({kSide, width}),
                     pre = zeros({kSide, width});
    const TensorView dy = zeros({kSide, kSide}), down = zeros({kSide, width}), dw = zeros({kSide, width}), db = zeros({kSide});
    for (int i = 0; i < 2; ++i) {  // what is known is not noted again
      kernels_->linear_gelu(*stream_, x, w, bias, pre, y);
      kernels_->linear_gelu_backward_input(*stream_, dy, down, pre, y);
      kernels_->linear_backward_params(*stream_, dy, y, dw, db, Write::overwrite);
    }
  }

  std::unique_ptr<Pool> pool_ = make_cuda_pool();
  std::unique_ptr<Stream> stream_ = make_cuda_stream("test");
  std::unique_ptr<Kernels> kernels_ = make_cuda_kernels(*pool_, {.fuse_epilogues = true});
  std::vector<Buffer> buffers_;
};

TEST_F(SlowPaths, AreNoneWhereEverythingIsTaken) {
  all_products(kSide);
  linear(kSide);
  EXPECT_THAT(kinds(), ElementsAre());
}

TEST_F(SlowPaths, OfRefusedEpilogues) {
  refuse_algorithms(1);
  all_products(kSide);
  EXPECT_THAT(kinds(), ElementsAre("a GELU not fused with its product"));
  const SlowPath& gelu = slow_paths(*kernels_)[0];
  EXPECT_EQ(gelu.shape, "linear_gelu, [256,256] x [256,256]^T bf16");
  EXPECT_THAT(gelu.reason, HasSubstr("has no algorithm for [256,256] x [256,256]^T bf16 -> bf16 with a bias and a GELU"));
}

TEST_F(SlowPaths, OfWidthsThatCublasLtDoesNotTakeWithAGelu) {
  all_products(kSide + 4);
  EXPECT_THAT(kinds(), ElementsAre("a GELU not fused with its product", "a GELU's gradient not fused with its product"));
  EXPECT_THAT(slow_paths(*kernels_)[1].reason, HasSubstr("only if the width is a multiple of 8; it is 260"));
}

TEST_F(SlowPaths, AreNoneWhereAnOptionAskedForThem) {
  kernels_ = make_cuda_kernels(*pool_, {.use_cudnn = false});
  all_products(kSide + 4);
  kernels_->attention(*stream_, {1, 512, 1, 64}, zeros({1, 512, 192}), zeros({1, 512, 64}), {});
  EXPECT_THAT(kinds(), ElementsAre());
}

TEST_F(SlowPaths, OfProductsByWayOfF32) {
  refuse_algorithms(1);
  linear(kSide);
  EXPECT_THAT(kinds(), ElementsAre("a result converted from fp32"));
  EXPECT_THAT(slow_paths(*kernels_)[0].reason, HasSubstr("-> bf16 with a bias"));
  kernels_ = make_cuda_kernels(*pool_);
  refuse_algorithms(2);
  linear(kSide);
  linear(kSide);
  EXPECT_THAT(kinds(), ElementsAre("operands converted to fp32"));
  EXPECT_EQ(slow_paths(*kernels_)[0].shape, "linear, [256,256] x [256,256]^T bf16");
  kernels_ = make_cuda_kernels(*pool_);
  const TensorView x = zeros({kSide, kSide}), x32 = zeros({kSide, kSide}, DType::f32);
  const TensorView dx = zeros({kSide, kSide}), dx32 = zeros({kSide, kSide}, DType::f32);
  kernels_->linear_backward_input(*stream_, x, x32, dx, Write::overwrite);
  kernels_->linear_backward_input(*stream_, x32, x32, dx, Write::overwrite);
  kernels_->linear_backward_input(*stream_, x, x, dx32, Write::overwrite);
  EXPECT_THAT(kinds(), ElementsAre("operands converted to fp32", "a result converted from fp32"));
  EXPECT_EQ(slow_paths(*kernels_)[0].reason, "operands of bf16 and fp32");
  EXPECT_THAT(slow_paths(*kernels_)[1].reason, HasSubstr("does not write bf16 when it multiplies fp32"));
}

TEST_F(SlowPaths, AreNotNotedWhereLaunchesTakeLonger) {
  refuse_algorithms(2);
  linear(kSide - 1);
  kernels_->activation(*stream_, Activation::gelu, zeros({1000}).slice(1, 999), zeros({1000}).slice(0, 999));
  kernels_->attention(*stream_, {1, 128, 1, 64}, zeros({1, 128, 192}), zeros({1, 128, 64}), {});
  EXPECT_THAT(kinds(), ElementsAre());
}

TEST_F(SlowPaths, OfAttentionWithoutCudnn) {
  const TensorView qkv = zeros({1, 512, 192}), y = zeros({1, 512, 64}), lse = zeros({1, 1, 512}, DType::f32);
  kernels_->attention(*stream_, {1, 512, 1, 64}, qkv, y, lse);
  kernels_->attention(*stream_, {1, 512, 1, 64}, qkv, y, lse);
  EXPECT_THAT(kinds(), ElementsAre("attention by Mica's own kernels"));
  EXPECT_EQ(slow_paths(*kernels_)[0].shape, "forward, B=1 T=512 H=1 D=64 bf16");
  EXPECT_THAT(slow_paths(*kernels_)[0].reason, HasSubstr("no cudnn-frontend"));
}

TEST_F(SlowPaths, OfElementsThatLieBadly) {
  const std::int64_t n = std::int64_t{1} << 20;
  const TensorView x = zeros({n + 8}), y = zeros({n + 8});
  kernels_->activation(*stream_, Activation::gelu, x.slice(3, n), y.slice(3, n));  // together from the fifth on
  EXPECT_THAT(kinds(), ElementsAre());
  kernels_->activation(*stream_, Activation::gelu, x.slice(3, n), y.slice(0, n));
  EXPECT_THAT(kinds(), ElementsAre("elements accessed one by one"));
  EXPECT_EQ(slow_paths(*kernels_)[0].shape, "gelu of [1048576] bf16");
}

}  // namespace
}  // namespace mica::cuda_emulation
