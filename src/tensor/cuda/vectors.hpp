// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "elements.hpp"
#include "launch.hpp"

// For elementwise kernels: divides ranges into vectors of 16 bytes and the elements before and after them.
namespace mica::cuda {

/// The number of elements that code processes at a time.
template <int kCount>
struct Lanes {
  static constexpr int count = kCount;
};

/// kCount numbers in registers.
template <int kCount>
struct Values {
  float v[kCount];
};

/// kCount consecutive elements in memory, accessed 16 bytes at a time if they are as long.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Packed {
  T element[kCount];
};

template <class T, int kCount>
__device__ inline Values<kCount> load(const T* p, Lanes<kCount>) {
  const Packed<T, kCount> packed = *reinterpret_cast<const Packed<T, kCount>*>(p);
  Values<kCount> values;
#pragma unroll
  for (int l = 0; l < kCount; ++l) values.v[l] = to_float(packed.element[l]);
  return values;
}
template <class T, int kCount>
__device__ inline void store(T* p, const Values<kCount>& values, Lanes<kCount>) {
  Packed<T, kCount> packed;
#pragma unroll
  for (int l = 0; l < kCount; ++l) packed.element[l] = from_float<T>(values.v[l]);
  *reinterpret_cast<Packed<T, kCount>*>(p) = packed;
}
/// Stores f(0), f(1), ... one for each lane.
template <class T, int kCount, class F>
__device__ inline void store_each(T* p, Lanes<kCount> lanes, F f) {
  Values<kCount> values;
#pragma unroll
  for (int l = 0; l < kCount; ++l) values.v[l] = f(l);
  store(p, values, lanes);
}

/// Elements that a thread processes at a time if all operands are aligned: 16 bytes of the narrowest type.
template <class... T>
inline constexpr int kLanes = 16 / static_cast<int>(std::min({sizeof(T)...}));

/// A range of n elements: `head` single ones, then `vectors` vectors at which every operand is aligned, then the tail. If the
/// operands are never aligned at the same place, all elements are in the head: correct, but slower.
struct Cut {
  std::int64_t n = 0, head = 0, vectors = 0;
  [[nodiscard]] Grid grid(int lanes) const { return Grid::over(std::max(vectors, n - vectors * lanes)); }
};

/// @param operands  the arrays' first elements; null for absent ones
template <int kCount, class... T>
[[nodiscard]] Cut cut(std::int64_t n, const T*... operands) {
  for (std::int64_t head = 0; head < kCount && head < n; ++head) {
    if ((is_aligned(operands + (operands ? head : 0), alignof(Packed<T, kCount>)) && ...)) {
      return {n, head, (n - head) / kCount};
    }
  }
  return {n, n, 0};
}

/// Calls body(i, Lanes<kCount>{}) or body(i, Lanes<1>{}) for all elements i of the range, spread over the grid.
template <int kCount, class Body>
__device__ inline void for_elements(const Cut& cut, Body body) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t v = thread; v < cut.vectors; v += threads) body(cut.head + v * kCount, Lanes<kCount>{});
  const std::int64_t rest = cut.n - cut.vectors * kCount;
  for (std::int64_t r = thread; r < rest; r += threads) {
    body(r < cut.head ? r : r + cut.vectors * kCount, Lanes<1>{});
  }
}

}  // namespace mica::cuda
