// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/random.hpp"

#include "../layer_arguments.hpp"
#include "../scalar_math.hpp"
#include "cuda_kernels.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// As many as fit into a kernel's arguments.
constexpr std::int64_t kMostSequences = 64;
struct Sequences {
  std::uint64_t id[kMostSequences];
};

/// Numbers of two of the generator's blocks.
constexpr int kGroup = 8;

/// Rows [0, gridDim.y) of x [., row_numel]. kCount: 8 if every group of a row is aligned, else 1.
template <class T, int kCount>
__global__ void dropout_kernel(const T* x, RandomKey key, Sequences sequences, std::int64_t row_numel, std::uint32_t threshold,
                               float factor, T* y) {
  key.sequence = sequences.id[blockIdx.y];
  const PhiloxStream stream = key;
  const T* from = x + blockIdx.y * row_numel;
  T* to = y + blockIdx.y * row_numel;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kGroup;
  for (; begin < row_numel; begin += threads * kGroup) {
    const auto block = static_cast<std::uint64_t>(begin) / 4;
    const auto low = random_block(stream, block), high = random_block(stream, block + 1);
    const auto kept = [&](int l) { return (l < 4 ? low[l % 4] : high[l % 4]) >= threshold; };
    if constexpr (kCount == kGroup) {
      const auto values = load(from + begin, Lanes<kGroup>{});
      store_each(to + begin, Lanes<kGroup>{}, [&](int l) { return kept(l) ? values.v[l] * factor : 0.0F; });
    } else {
#pragma unroll
      for (int l = 0; l < kGroup; ++l) {
        if (begin + l < row_numel) to[begin + l] = from_float<T>(kept(l) ? to_float(from[begin + l]) * factor : 0.0F);
      }
    }
  }
}

/// Elements [begin, begin + n) of the stream, a generator's block at a time.
template <class T>
__global__ void normal_kernel(RandomKey key, std::int64_t begin, std::int64_t n, float std, T* x) {
  const PhiloxStream stream = key;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t block = begin / 4 + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; block * 4 < begin + n; block += threads) {
    const auto words = random_block(stream, static_cast<std::uint64_t>(block));
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const std::int64_t i = block * 4 + l - begin;
      if (i >= 0 && i < n) x[i] = from_float<T>(normal_from_word<ScalarMath>(words[l]) * std);
    }
  }
}

}  // namespace

void CudaKernels::dropout(Stream& s, ConstTensorView x, double p, const RandomKey& key, std::span<const std::int64_t> sequences,
                          TensorView y) {
  const auto batch = static_cast<std::int64_t>(sequences.size());
  check_dropout(x, p, batch, y);
  if (x.numel() == 0) return;
  const std::int64_t row_numel = x.numel() / batch;
  const std::uint32_t threshold = dropout_threshold(p);
  const auto factor = static_cast<float>(1.0 / (1.0 - p));
  for (std::int64_t row = 0; row < batch; row += kMostSequences) {
    const std::int64_t rows = std::min(kMostSequences, batch - row);
    Sequences ids{};
    for (std::int64_t i = 0; i < rows; ++i) {
      ids.id[i] = static_cast<std::uint64_t>(sequences[static_cast<std::size_t>(row + i)]);
    }
    Grid grid = Grid::over(row_numel, kGroup, 1024);
    grid.y = rows;
    with_element(x.dtype, [&](auto element) {
      using T = decltype(element);
      const T* from = static_cast<const T*>(x.data) + row * row_numel;
      T* to = static_cast<T*>(y.data) + row * row_numel;
      const bool in_groups = row_numel % kGroup == 0 && is_aligned(from, 16) && is_aligned(to, 16);
      launch(s, "dropout", {reads(x), mica::writes(y)}, grid, in_groups ? dropout_kernel<T, kGroup> : dropout_kernel<T, 1>, from, key, ids,
             row_numel, threshold, factor, to);
    });
  }
}

void CudaKernels::fill_normal(Stream& s, TensorView x, const RandomKey& key, std::int64_t begin, double std) {
  const std::int64_t n = x.numel();
  expect("fill_normal", "x", x, n, kFloats);
  require(begin >= 0, "fill_normal: begin is {}, expected 0 or more", begin);
  if (n == 0) return;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    launch(s, "fill_normal", {mica::writes(x)}, Grid::over(n + 3, 4), normal_kernel<T>, key, begin, n, static_cast<float>(std),
           static_cast<T*>(x.data));
  });
}

}  // namespace mica::cuda
