// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <gtest/gtest.h>

#include "mica/device/gpu.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "cuda_emulation.hpp"

// What Mica makes of a cuBLASLt that has no algorithm: only the emulation can be told to have none.
namespace mica::cuda_emulation {
namespace {

constexpr std::int64_t kRows = 5, kIn = 7, kOut = 3;

class ProductsWithout : public ::testing::Test {
 protected:
  /// Small whole numbers: every way to multiply them gives the same bits.
  TensorView numbers(Shape shape, DType dtype, int seed) {
    buffers_.push_back(pool_->allocate(shape.numel() * 4, MemoryRole::activation, *stream_));
    std::vector<float> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<float>((i * 7 + seed) % 5 - 2));
    pool_->copy(buffers_.back().data(), values.data(), shape.numel() * 4);
    const TensorView f32(buffers_.back().data(), shape, DType::f32);
    if (dtype == DType::f32) return f32;
    const TensorView view = empty(shape, dtype);
    kernels_->copy(*stream_, f32, view);
    return view;
  }
  TensorView empty(Shape shape, DType dtype) {
    buffers_.push_back(pool_->allocate(shape.numel() * 4, MemoryRole::activation, *stream_));
    return {buffers_.back().data(), shape, dtype};
  }
  std::vector<float> values(TensorView view) {
    const TensorView f32 = empty(view.shape, DType::f32);
    kernels_->scale(*stream_, view, 1.0, f32, Write::overwrite);
    stream_->synchronize();
    std::vector<float> host(static_cast<std::size_t>(view.numel()));
    pool_->copy(host.data(), f32.data, view.numel() * 4);
    return host;
  }
  /// y of linear() with new shapes' plans still to be found, the first `refused` searches in vain.
  std::vector<float> linear(int refused) {
    kernels_ = make_cuda_kernels(*pool_);
    const TensorView x = numbers({kRows, kIn}, DType::bf16, 1), w = numbers({kOut, kIn}, DType::bf16, 2);
    const TensorView bias = numbers({kOut}, DType::bf16, 3), y = empty({kRows, kOut}, DType::bf16);
    fail_next("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED, 0, refused);
    kernels_->linear(*stream_, x, w, bias, y);
    return values(y);
  }

  std::unique_ptr<Pool> pool_ = make_cuda_pool();
  std::unique_ptr<Stream> stream_ = make_cuda_stream("test");
  std::unique_ptr<Kernels> kernels_ = make_cuda_kernels(*pool_);
  std::vector<Buffer> buffers_;
};

TEST_F(ProductsWithout, AlgorithmsGoByWayOfF32) {
  const std::vector<float> y = linear(0);
  EXPECT_EQ(linear(1), y) << "no bias in the epilogue";
  EXPECT_EQ(linear(2), y) << "nothing for bf16";
  EXPECT_EQ(pool_->stats().current_of(MemoryRole::workspace), 0);
  try {
    linear(3);
    FAIL() << "there was nothing for f32 either";
  } catch (const CudaError& e) {
    EXPECT_NE(std::string(e.what()).find("has no algorithm for [5,7] x [3,7]^T fp32 -> fp32"), std::string::npos) << e.what();
  }
}

TEST_F(ProductsWithout, SearchingAgain) {
  kernels_ = make_cuda_kernels(*pool_, {.fuse_epilogues = true});
  const TensorView x = numbers({kRows, kIn}, DType::bf16, 1), w = numbers({kOut, kIn}, DType::bf16, 2);
  const TensorView y = empty({kRows, kOut}, DType::bf16), dw = empty({kOut, kIn}, DType::f32), db = empty({kOut}, DType::f32);
  reset_calls();
  for (int i = 0; i < 3; ++i) {
    kernels_->linear(*stream_, x, w, {}, y);
    kernels_->linear_backward_params(*stream_, y, x, dw, db, Write::overwrite);
    kernels_->linear_backward_params(*stream_, y, x, dw, {}, Write::overwrite);
  }
  EXPECT_EQ(calls("cublasLtMatmulAlgoGetHeuristic"), 2) << "one for each product";
  EXPECT_EQ(calls("cublasLtMatmulAlgoCheck"), 0);
  EXPECT_EQ(calls("cublasLtMatmul"), 9);
  EXPECT_EQ(host_waits(), 0);
}

/// Emulated products whose sums are long for their results ask for room for one more result.
TEST_F(ProductsWithout, SumsInPartsGetRoomUpTo64MiB) {
  for (const std::int64_t columns : {9'000'000, 17'000'000}) {
    const TensorView dy = empty({2, 1}, DType::bf16), x = empty({2, columns}, DType::bf16), dw = empty({1, columns}, DType::bf16);
    pool_->reset_peak();
    kernels_->linear_backward_params(*stream_, dy, x, dw, {}, Write::overwrite);
    EXPECT_EQ(pool_->stats().peak_of(MemoryRole::workspace) >= 4 * columns, columns * 4 <= 64 << 20) << columns;
    buffers_.clear();
  }
}

/// In the result itself parts may be added up in any order, and in f32 alone they lose nothing.
TEST_F(ProductsWithout, SumsInPartsAreMadeWhereTheyAreReproducibleAndInF32) {
  constexpr std::uint32_t kApart = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  for (const bool reproducible : {true, false}) {
    kernels_ = make_cuda_kernels(*pool_, {.reproducible = reproducible});
    for (const DType out : {DType::bf16, DType::f32}) {
      const TensorView x = numbers({kRows, kIn}, DType::bf16, 1), w = numbers({kOut, kIn}, DType::bf16, 2);
      kernels_->linear(*stream_, x, w, {}, empty({kRows, kOut}, out));
      const bool in_place = !reproducible && out == DType::f32;
      EXPECT_EQ(allowed_reductions(), in_place ? kApart | CUBLASLT_REDUCTION_SCHEME_INPLACE : kApart);
    }
  }
}

}  // namespace
}  // namespace mica::cuda_emulation
