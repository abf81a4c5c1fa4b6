// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>

#include <cuda_runtime.h>

#include "mica/device/cuda/check.hpp"
#include "mica/device/stream.hpp"

namespace mica::cuda {

inline constexpr int kBlockThreads = 256;

/// Blocks and threads of a launch; y for a second dimension of blocks.
struct Grid {
  std::int64_t x = 1;
  std::int64_t y = 1;
  int threads = kBlockThreads;

  /// One thread per element (or per `per_thread` elements), at most `most_blocks` blocks: kernels use grid-stride loops.
  static Grid over(std::int64_t numel, std::int64_t per_thread = 1, std::int64_t most_blocks = 4096) {
    const std::int64_t per_block = kBlockThreads * per_thread;
    return {std::clamp((numel + per_block - 1) / per_block, std::int64_t{1}, most_blocks)};
  }
};

/// Enqueues one kernel as one task of the stream. Kernels use static shared memory only.
/// @param what  a literal naming the task, for traces and errors.
template <class... Params, class... Args>
void launch(Stream& s, const char* what, std::span<const Access> accesses, Grid grid, void (*kernel)(Params...), Args... args) {
  s.submit(what, accesses, [=, stream = native(s)] {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), what);
  });
}
template <class... Params, class... Args>
void launch(Stream& s, const char* what, std::initializer_list<Access> accesses, Grid grid, void (*kernel)(Params...), Args... args) {
  launch(s, what, std::span<const Access>(accesses.begin(), accesses.size()), grid, kernel, args...);
}

}  // namespace mica::cuda
