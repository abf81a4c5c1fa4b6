// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include <cublasLt.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/device/gpu.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "cuda_emulation.hpp"

// Which calls of CUDA and cuBLASLt the fused operations become: only the emulation can count them.
namespace mica::cuda_emulation {
namespace {

class FusedCalls : public ::testing::Test {
 protected:
  TensorView zeros(Shape shape, DType dtype) {
    buffers_.push_back(pool_->allocate(shape.numel() * dtype_bytes(dtype), MemoryRole::activation, *stream_));
    const TensorView view(buffers_.back().data(), shape, dtype);
    kernels_->fill(*stream_, view, 0);
    return view;
  }
  /// Products and kernels that the calls enqueue.
  template <class Calls>
  std::pair<int, int> count(const Calls& enqueue) {
    reset_calls();
    enqueue();
    return {calls("cublasLtMatmul"), calls("cudaLaunchKernelEx")};
  }

  std::unique_ptr<Pool> pool_ = make_cuda_pool();
  std::unique_ptr<Stream> stream_ = make_cuda_stream("test");
  std::unique_ptr<Kernels> kernels_ = make_cuda_kernels(*pool_, {.fuse_epilogues = true});
  std::vector<Buffer> buffers_;
};

TEST_F(FusedCalls, AGeluBelongsToItsProductWhereCublasLtTakesIt) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t width : {24, 20}) {
      const TensorView x = zeros({3, 5}, dtype), w = zeros({width, 5}, dtype), bias = zeros({width}, dtype);
      const TensorView pre = zeros({3, width}, dtype), y = zeros({3, width}, dtype), down = zeros({7, width}, dtype),
                       dy = zeros({3, 7}, dtype);
      const bool fits = dtype != DType::f32 && width % 8 == 0;
      const std::pair<int, int> expected{1, fits ? 0 : 1};
      const auto forward = [&](ConstTensorView b, TensorView p) { kernels_->linear_gelu(*stream_, x, w, b, p, y); };
      EXPECT_EQ(count([&] { forward(bias, pre); }), expected) << width;
      EXPECT_EQ(count([&] { forward({}, pre); }), expected) << width;
      EXPECT_EQ(count([&] { forward(bias, {}); }), expected) << width;
      EXPECT_EQ(count([&] { forward({}, {}); }), expected) << width;
      EXPECT_EQ(count([&] { kernels_->linear_gelu_backward_input(*stream_, dy, down, pre, y); }), expected) << width;
    }
  }
  EXPECT_EQ(pool_->stats().current_of(MemoryRole::workspace), 0);
}

/// Without its own algorithm for a GELU alone, the one that also writes the GELU's input is used, into scratch.
TEST_F(FusedCalls, AnAlgorithmThatMustWriteTheGelusInputWritesScratch) {
  const TensorView x = zeros({3, 8}, DType::bf16), w = zeros({16, 8}, DType::bf16), y = zeros({3, 16}, DType::bf16);
  fail_next("cublasLtMatmulAlgoCheck", CUBLAS_STATUS_NOT_SUPPORTED);
  pool_->reset_peak();
  EXPECT_EQ(count([&] { kernels_->linear_gelu(*stream_, x, w, {}, {}, y); }), (std::pair<int, int>{1, 0}));
  EXPECT_GE(pool_->stats().peak_of(MemoryRole::workspace), 3 * 16 * 2);
  EXPECT_EQ(pool_->stats().current_of(MemoryRole::workspace), 0);
}

TEST_F(FusedCalls, WithoutSuchAnAlgorithmProductAndGeluAreApart) {
  const TensorView x = zeros({3, 8}, DType::bf16), w = zeros({16, 8}, DType::bf16), y = zeros({3, 16}, DType::bf16),
                   pre = zeros({3, 16}, DType::bf16);
  fail_next("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(count([&] { kernels_->linear_gelu(*stream_, x, w, {}, pre, y); }), (std::pair<int, int>{1, 1}));
  EXPECT_EQ(count([&] { kernels_->linear_gelu(*stream_, x, w, {}, pre, y); }), (std::pair<int, int>{1, 1}))
      << "what is not there is not asked for again";
  EXPECT_EQ(calls("cublasLtMatmulAlgoGetHeuristic"), 0);
  fail_next("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED);
  const TensorView dy = zeros({3, 8}, DType::bf16), down = zeros({8, 16}, DType::bf16);
  EXPECT_EQ(count([&] { kernels_->linear_gelu_backward_input(*stream_, dy, down, pre, y); }), (std::pair<int, int>{1, 1}));
}

/// Which layers run together depends on what is a unit of its own: bits may not.
TEST_F(FusedCalls, DeterministicKernelsKeepProductsAndGelusApart) {
  kernels_ = make_cuda_kernels(*pool_);
  const TensorView x = zeros({3, 8}, DType::bf16), w = zeros({16, 8}, DType::bf16), y = zeros({3, 16}, DType::bf16),
                   pre = zeros({3, 16}, DType::bf16), dy = zeros({3, 8}, DType::bf16), down = zeros({8, 16}, DType::bf16);
  EXPECT_EQ(count([&] { kernels_->linear_gelu(*stream_, x, w, {}, pre, y); }), (std::pair<int, int>{1, 1}));
  EXPECT_EQ(count([&] { kernels_->linear_gelu(*stream_, x, w, {}, {}, y); }), (std::pair<int, int>{1, 1}));
  EXPECT_EQ(count([&] { kernels_->linear_gelu_backward_input(*stream_, dy, down, pre, y); }), (std::pair<int, int>{1, 1}));
}

TEST_F(FusedCalls, TheEnvironmentKeepsProductsApartFromTheRest) {
  ::setenv("MICA_GPU_EPILOGUES", "off", 1);
  kernels_ = make_cuda_kernels(*pool_, {.fuse_epilogues = true});
  EXPECT_NE(kernels_->description().find("without epilogues (MICA_GPU_EPILOGUES=off)"), std::string::npos);
  ::setenv("MICA_GPU_EPILOGUES", "of", 1);
  EXPECT_THROW(static_cast<void>(make_cuda_kernels(*pool_)), ConfigError);
  ::unsetenv("MICA_GPU_EPILOGUES");
  const TensorView x = zeros({3, 8}, DType::bf16), w = zeros({16, 8}, DType::bf16), y = zeros({3, 16}, DType::bf16),
                   bias = zeros({16}, DType::bf16);
  EXPECT_EQ(count([&] { kernels_->linear_gelu(*stream_, x, w, {}, {}, y); }), (std::pair<int, int>{1, 1}));
  EXPECT_EQ(count([&] { kernels_->linear_backward_params(*stream_, y, x, w, bias, Write::overwrite); }), (std::pair<int, int>{1, 2}));
  EXPECT_EQ(make_cuda_kernels(*pool_, {.fuse_epilogues = true})->description().find("epilogues"), std::string::npos);
}

TEST_F(FusedCalls, SumsAndNormsAreOneKernel) {
  const TensorView a = zeros({3, 7}, DType::bf16), y = zeros({3, 7}, DType::bf16), gamma = zeros({7}, DType::bf16);
  EXPECT_EQ(count([&] {
              kernels_->add_layer_norm(*stream_, a, a, a, gamma, gamma, 1e-5, y, {}, {});
              kernels_->add_rms_norm(*stream_, a, a, a, gamma, 1e-5, y, {});
            }),
            (std::pair<int, int>{0, 2}));
}

TEST_F(FusedCalls, TensorsOfAStepShareLaunches) {
  std::vector<AdamWArgs> adamw;
  std::vector<SgdArgs> sgd;
  for (int i = 0; i < 108; ++i) {
    const TensorView t = zeros({5}, DType::f32);
    AdamWArgs a;
    a.param = a.exp_avg = a.exp_avg_sq = t;
    a.grad = t;
    adamw.push_back(a);
    SgdArgs g;
    g.param = t, g.grad = t;
    sgd.push_back(g);
  }
  EXPECT_EQ(count([&] { kernels_->adamw(*stream_, adamw); }).second, 3);  // 37 of them fit into 4096 bytes
  EXPECT_EQ(count([&] { kernels_->sgd(*stream_, sgd); }).second, 3);      // and 53 of these
  EXPECT_EQ(count([&] { kernels_->adamw(*stream_, adamw[0]); }).second, 1);
}

}  // namespace
}  // namespace mica::cuda_emulation
