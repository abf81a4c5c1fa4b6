// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "../arguments.hpp"
#include "cuda_kernels.hpp"
#include "elements.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// The type that threads copy at a time; up to 16 bytes.
struct alignas(16) Words {
  std::uint32_t word[4];
};

/// A BlockCopy in bytes and units: rows of `units` units of `unit_bytes` bytes each, in chunks that a group of
/// 2^log2_threads threads copies.
struct Run {
  const std::byte* src;
  std::byte* dst;
  std::int64_t src_stride, dst_stride;  // bytes from a row to the next
  std::int64_t units, rows, chunks;     // chunks: of a row
  int unit_bytes, log2_threads;
};
constexpr std::int64_t kChunk = 2048;  // units

/// As many as fit into a kernel's arguments.
constexpr int kMostRuns = 48;
struct Runs {
  Run run[kMostRuns];
};

template <class Unit>
__device__ void copy_chunks(const Run& run) {
  const int group = 1 << run.log2_threads;
  const int lane = static_cast<int>(threadIdx.x) & (group - 1);
  const std::int64_t groups = static_cast<std::int64_t>(gridDim.x) * (blockDim.x >> run.log2_threads);
  std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x >> run.log2_threads) + (threadIdx.x >> run.log2_threads);
  for (; chunk < run.rows * run.chunks; chunk += groups) {
    const std::int64_t row = run.chunks == 1 ? chunk : chunk / run.chunks;
    const std::int64_t begin = (chunk - row * run.chunks) * kChunk;
    const std::int64_t end = begin + kChunk < run.units ? begin + kChunk : run.units;
    const auto* __restrict__ from = reinterpret_cast<const Unit*>(run.src + row * run.src_stride);
    auto* __restrict__ to = reinterpret_cast<Unit*>(run.dst + row * run.dst_stride);
#pragma unroll 4
    for (std::int64_t i = begin + lane; i < end; i += group) to[i] = from[i];
  }
}

__global__ void copy_blocks_kernel(Runs runs) {
  const Run& run = runs.run[blockIdx.y];
  switch (run.unit_bytes) {
    case 16:
      return copy_chunks<Words>(run);
    case 8:
      return copy_chunks<std::uint64_t>(run);
    case 4:
      return copy_chunks<std::uint32_t>(run);
    case 2:
      return copy_chunks<std::uint16_t>(run);
    default:
      return copy_chunks<std::uint8_t>(run);
  }
}

Run make_run(const BlockCopy& b, const void* src, void* dst, std::int64_t element_bytes) {
  Run run{};
  run.src = static_cast<const std::byte*>(src) + b.src * element_bytes;
  run.dst = static_cast<std::byte*>(dst) + b.dst * element_bytes;
  run.rows = b.count;
  run.src_stride = b.count == 1 ? 0 : b.src_stride * element_bytes;
  run.dst_stride = b.count == 1 ? 0 : b.dst_stride * element_bytes;
  // The largest unit that divides every address and length: their lowest set bit.
  const std::uint64_t all = static_cast<std::uint64_t>(b.numel * element_bytes | run.src_stride | run.dst_stride) |
                            reinterpret_cast<std::uintptr_t>(run.src) | reinterpret_cast<std::uintptr_t>(run.dst);
  run.unit_bytes = 1 << std::min(4, std::countr_zero(all));
  run.units = b.numel * element_bytes / run.unit_bytes;
  run.chunks = (run.units + kChunk - 1) / kChunk;
  // Short rows share a block.
  run.log2_threads = std::bit_width(static_cast<std::uint64_t>(std::min<std::int64_t>(run.units, kBlockThreads)) - 1);
  return run;
}

}  // namespace

void CudaKernels::copy_blocks(Stream& s, ConstTensorView src, TensorView dst, std::span<const BlockCopy> blocks) {
  expect("copy_blocks", "src", src, src.numel(), {dst.dtype});
  expect("copy_blocks", "dst", dst, dst.numel(), {dst.dtype});
  Runs runs{};
  int num_runs = 0;
  std::int64_t most_chunks = 0;
  const auto enqueue = [&] {
    // Enough blocks for one long run, but fewer for each of 48 short ones.
    const std::int64_t most_blocks = std::max<std::int64_t>(8192 / num_runs, 256);
    launch(s, "copy_blocks", {reads(src), mica::writes(dst)}, Grid{std::clamp<std::int64_t>(most_chunks, 1, most_blocks), num_runs},
           copy_blocks_kernel, runs);
    num_runs = 0;
    most_chunks = 0;
  };
  for (const BlockCopy& b : blocks) {
    const auto fits = [&](std::int64_t first, std::int64_t stride, std::int64_t numel) {
      return first >= 0 && stride >= 0 && first + (b.count - 1) * stride + b.numel <= numel;
    };
    require(b.count == 0 || (fits(b.src, b.src_stride, src.numel()) && fits(b.dst, b.dst_stride, dst.numel())),
            "copy_blocks: {} blocks of {} elements from {} to {} leave arrays of {} and {} elements", b.count, b.numel, b.src, b.dst,
            src.numel(), dst.numel());
    if (b.count == 0 || b.numel == 0) continue;
    const Run& run = runs.run[num_runs++] = make_run(b, src.data, dst.data, dtype_bytes(src.dtype));
    const std::int64_t groups_per_block = kBlockThreads >> run.log2_threads;
    most_chunks = std::max(most_chunks, (run.rows * run.chunks + groups_per_block - 1) / groups_per_block);
    if (num_runs == kMostRuns) enqueue();
  }
  if (num_runs > 0) enqueue();
}

}  // namespace mica::cuda
