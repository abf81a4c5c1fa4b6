// SPDX-License-Identifier: Apache-2.0
#include "bias.hpp"

#include <algorithm>

#include "fold_sums.hpp"
#include "reduce.hpp"
#include "vectors.hpp"

namespace mica::cuda {

namespace {

constexpr int kWarps = kBlockThreads / kWarp;
/// Rows that a thread loads before it adds them, to keep enough loads in flight.
constexpr int kRowsInFlight = 8;

/// Sums of rows [y * chunk, (y + 1) * chunk) into partial[y]; a block has kWarp * kPerThread columns, each of its warps
/// every eighth row.
template <class T, int kPerThread>
__global__ void partial_column_sums(const T* dy, std::int64_t rows, std::int64_t n, std::int64_t chunk, float* partial) {
  __shared__ float sums[kWarps][kWarp * kPerThread];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kWarp + lane) * kPerThread;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * chunk;
  const std::int64_t end = begin + chunk < rows ? begin + chunk : rows;

  using Row = Packed<T, kPerThread>;
  float sum[kPerThread] = {};
  if (column < n) {
    for (std::int64_t first = begin + warp; first < end; first += kWarps * kRowsInFlight) {
      Row packs[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const std::int64_t row = first + r * kWarps;
        packs[r] = row < end ? *reinterpret_cast<const Row*>(dy + row * n + column) : Row{};
      }
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) sum[i] += to_float(packs[r].element[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) sums[warp][i * kWarp + lane] = sum[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWarp * kPerThread; i += kBlockThreads) {
    const std::int64_t to = (static_cast<std::int64_t>(blockIdx.x) * kWarp + i % kWarp) * kPerThread + i / kWarp;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][i];
    if (to < n) partial[static_cast<std::int64_t>(blockIdx.y) * n + to] = total;
  }
}

template <class T>
__global__ void add_bias_rows(const float* x, const float* bias, std::int64_t numel, std::int64_t n, T* y) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numel; i += stride) {
    y[i] = from_float<T>(x[i] + bias[i % n]);
  }
}

}  // namespace

void bias_gradient(Stream& s, Pool& pool, ConstTensorView dy, std::int64_t rows, TensorView dbias, Write mode) {
  const std::int64_t n = dbias.numel();
  const std::int64_t pack = 16 / dtype_bytes(dy.dtype);
  const bool in_packs = is_aligned(dy.data, 16) && n % pack == 0;
  const std::int64_t columns = kWarp * (in_packs ? pack : 1);
  const std::int64_t column_blocks = (n + columns - 1) / columns;
  // About a thousand blocks of at least 64 rows. Fixed numbers: the order of a sum does not depend on the GPU.
  const std::int64_t wanted = std::clamp((1024 + column_blocks - 1) / column_blocks, std::int64_t{1}, (rows + 63) / 64);
  const std::int64_t chunk = (rows + wanted - 1) / wanted;
  const std::int64_t chunks = (rows + chunk - 1) / chunk;

  const Buffer partial = pool.allocate(chunks * n * 4, MemoryRole::workspace, s);
  const Access partial_access = writes(partial.data(), partial.bytes());
  auto* sums = static_cast<float*>(partial.data());
  with_element(dy.dtype, [&](auto element) {
    using T = decltype(element);
    launch(s, "bias_gradient", {reads(dy), partial_access}, Grid{column_blocks, chunks},
           in_packs ? partial_column_sums<T, Pack<T>::kNumel> : partial_column_sums<T, 1>, static_cast<const T*>(dy.data), rows, n, chunk,
           sums);
  });
  fold_sums(s, "bias_gradient", {.space = partial, .num = chunks, .cols = n}, dbias, {}, mode);
}

void add_bias(Stream& s, ConstTensorView x, ConstTensorView bias, TensorView y) {
  with_element(y.dtype, [&](auto element) {
    using T = decltype(element);
    launch(s, "add_bias", {reads(x), reads(bias), writes(y)}, Grid::over(y.numel()), add_bias_rows<T>, static_cast<const float*>(x.data),
           static_cast<const float*>(bias.data), y.numel(), bias.numel(), static_cast<T*>(y.data));
  });
}

}  // namespace mica::cuda
