// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "../arguments.hpp"
#include "../element_math.hpp"
#include "cuda_kernels.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// As many as fit into a kernel's arguments: enough for heads up to 256 wide.
constexpr std::int64_t kMostFrequencies = 128;
struct Frequencies {
  double value[kMostFrequencies];
};

/// cos and sin [seq_len, half], columns [first, first + count), of the rotations of all heads and sequences; computed once, in double.
/// @param sign  of the angles
__global__ void angles_kernel(Frequencies inv_freq, std::int64_t first, std::int64_t count, std::int64_t seq_len, std::int64_t half,
                              double sign, float* cos, float* sin) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < seq_len * count; i += threads) {
    const std::int64_t t = i / count, column = i - t * count;
    const double angle = static_cast<double>(t) * inv_freq.value[column];
    cos[t * half + first + column] = static_cast<float>(std::cos(angle));
    sin[t * half + first + column] = static_cast<float>(sign * std::sin(angle));
  }
}

/// A block rotates one token at a time. kCount divides `half`, and all rows are aligned to kCount elements.
template <class T, int kCount>
__global__ void rotary_kernel(const T* x, const float* cos, const float* sin, std::int64_t tokens, std::int64_t seq_len, int heads,
                              int half, T* y) {
  constexpr Lanes<kCount> lanes;
  const int per_head = half / kCount;
  for (std::int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    const std::int64_t t = token % seq_len;
    for (int j = static_cast<int>(threadIdx.x); j < heads * per_head; j += static_cast<int>(blockDim.x)) {
      const int head = j / per_head;
      const int i = (j - head * per_head) * kCount;
      const std::int64_t at = (token * heads + head) * 2 * half + i;
      const auto a = load(x + at, lanes), b = load(x + at + half, lanes);
      const auto c = load(cos + t * half + i, lanes), s = load(sin + t * half + i, lanes);
      store_each(y + at, lanes, [&](int l) { return element::turn(a.v[l], b.v[l], c.v[l], s.v[l]).a; });
      store_each(y + at + half, lanes, [&](int l) { return element::turn(a.v[l], b.v[l], c.v[l], s.v[l]).b; });
    }
  }
}

}  // namespace

void CudaKernels::rotary(Stream& s, ConstTensorView x, std::span<const double> inv_freq, Turn turn, TensorView y) {
  const auto half = static_cast<std::int64_t>(inv_freq.size());
  expect("rotary", "x", x, x.numel(), kFloats);
  if (x.shape.num_dims() != 3 || half == 0 || x.shape[2] % (2 * half) != 0) {
    refuse("rotary", "x", x, fmt::format("[batch, seq_len, heads * {}], two columns for each frequency", 2 * half));
  }
  expect("rotary", "y", y, x.numel(), {x.dtype});
  if (x.numel() == 0) return;
  const std::int64_t seq_len = x.shape[1], tokens = x.shape[0] * seq_len, heads = x.shape[2] / (2 * half);
  // The sines begin at a multiple of 64 bytes.
  const std::int64_t table_bytes = (seq_len * half * 4 + 63) / 64 * 64;
  const Buffer space = scratch(s, 2 * table_bytes);
  auto* cos = static_cast<float*>(space.data());
  auto* sin = cos + table_bytes / 4;
  for (std::int64_t first = 0; first < half; first += kMostFrequencies) {
    const std::int64_t count = std::min(kMostFrequencies, half - first);
    Frequencies part{};
    std::copy_n(inv_freq.begin() + first, count, part.value);
    launch(s, "rotary", {writes(space)}, Grid::over(seq_len * count), angles_kernel, part, first, count, seq_len, half,
           turn == Turn::forward ? 1.0 : -1.0, cos, sin);
  }
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kLanes<T>;
    const bool in_vectors = half % kCount == 0 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
    if (!in_vectors) slow_paths_.note_one_by_one("rotary", y.shape, y.dtype);
    const std::int64_t work = heads * half / (in_vectors ? kCount : 1);
    const Grid grid{std::min<std::int64_t>(tokens, 8192), 1, work > 128 ? kBlockThreads : work > 32 ? 128 : 32};
    launch(s, "rotary", {reads(x), writes(space), mica::writes(y)}, grid, in_vectors ? rotary_kernel<T, kCount> : rotary_kernel<T, 1>,
           static_cast<const T*>(x.data), cos, sin, tokens, seq_len, heads, half, static_cast<T*>(y.data));
  });
}

}  // namespace mica::cuda
