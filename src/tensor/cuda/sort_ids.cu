// SPDX-License-Identifier: Apache-2.0
#include "sort_ids.hpp"

#include <utility>

#include "reduce.hpp"

namespace mica::cuda {

namespace {

constexpr int kDigits = 256;  // also threads of a block: each counts one digit
constexpr int kWarps = kDigits / kWarp;
constexpr int kRounds = 8;                // in each, a warp processes 32 consecutive elements
constexpr int kOfWarp = kRounds * kWarp;  // consecutive elements of a warp
constexpr std::int64_t kOfBlock = kWarps * kOfWarp;

/// The sort key: the id, or `vocab` for an invalid one.
__device__ std::uint32_t key_of(const std::int32_t* ids, std::int32_t number, std::int32_t vocab) {
  const std::int32_t id = ids[number];
  return static_cast<std::uint32_t>(id >= 0 && id < vocab ? id : vocab);
}

/// A block's elements of the order so far (null: 0, 1, 2, ...).
struct Tile {
  const std::int32_t* order;
  std::int64_t count;
  __device__ std::int64_t place(int round) const {
    return blockIdx.x * kOfBlock + threadIdx.x / kWarp * kOfWarp + round * kWarp + threadIdx.x % kWarp;
  }
  __device__ std::int32_t number(int round) const {
    const std::int64_t at = place(round);
    return at >= count ? -1 : order != nullptr ? order[at] : static_cast<std::int32_t>(at);
  }
};

/// Counts each warp's elements of every digit in of_warp, and sets, for each element, the number of earlier elements of its warp with the
/// same digit. number[round] < 0: there is no element.
__device__ void count_digits(const Tile& tile, const std::int32_t* ids, std::int32_t vocab, int shift,
                             std::int32_t (&of_warp)[kWarps][kDigits], std::int32_t (&number)[kRounds], int (&digit)[kRounds],
                             std::int32_t (&before)[kRounds]) {
  for (int w = 0; w < kWarps; ++w) of_warp[w][threadIdx.x] = 0;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::int32_t(&counts)[kDigits] = of_warp[threadIdx.x / kWarp];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    number[round] = tile.number(round);
    digit[round] = number[round] < 0 ? -1 : static_cast<int>(key_of(ids, number[round], vocab) >> shift & (kDigits - 1));
    int lower = 0, higher = 0;  // lanes with the same digit
    for (int other = 0; other < kWarp; ++other) {
      const bool is_same = __shfl_sync(0xffffffffU, digit[round], other) == digit[round];
      lower += is_same && other < lane ? 1 : 0;
      higher += is_same && other > lane ? 1 : 0;
    }
    before[round] = digit[round] < 0 ? 0 : counts[digit[round]] + lower;
    __syncwarp();
    if (digit[round] >= 0 && higher == 0) counts[digit[round]] = before[round] + 1;
    __syncwarp();
  }
  __syncthreads();
}

/// counts[block, digit]
__global__ void count_kernel(Tile tile, const std::int32_t* ids, std::int32_t vocab, int shift, std::int32_t* counts) {
  __shared__ std::int32_t of_warp[kWarps][kDigits];
  std::int32_t number[kRounds], before[kRounds];
  int digit[kRounds];
  count_digits(tile, ids, vocab, shift, of_warp, number, digit, before);
  std::int32_t sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += of_warp[w][threadIdx.x];
  counts[static_cast<std::int64_t>(blockIdx.x) * kDigits + threadIdx.x] = sum;
}

/// Puts every element after those with a lower digit and, among those with the same digit, after those of earlier blocks, of earlier
/// warps, and before it in its own warp.
__global__ void place_kernel(Tile tile, const std::int32_t* ids, std::int32_t vocab, int shift, const std::int32_t* counts,
                             std::int32_t* sorted) {
  __shared__ std::int32_t of_warp[kWarps][kDigits];
  __shared__ std::int32_t totals[kDigits];
  std::int32_t number[kRounds], before[kRounds];
  int digit[kRounds];
  count_digits(tile, ids, vocab, shift, of_warp, number, digit, before);

  // Each thread's digit: where its elements of this block begin.
  const auto mine = static_cast<int>(threadIdx.x);
  std::int32_t total = 0, begin = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) {
    if (block == blockIdx.x) begin = total;
    total += counts[static_cast<std::int64_t>(block) * kDigits + mine];
  }
  totals[mine] = total;
  __syncthreads();
  for (int lower = 0; lower < mine; ++lower) begin += totals[lower];
  for (int w = 0; w < kWarps; ++w) {
    const std::int32_t count = of_warp[w][mine];
    of_warp[w][mine] = begin;
    begin += count;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (digit[round] >= 0) sorted[of_warp[threadIdx.x / kWarp][digit[round]] + before[round]] = number[round];
  }
}

std::int64_t order_bytes(std::int64_t count) { return (count * 4 + 63) / 64 * 64; }
std::int64_t num_blocks(std::int64_t count) { return (count + kOfBlock - 1) / kOfBlock; }

}  // namespace

std::int64_t sort_ids_scratch_bytes(std::int64_t count) { return 2 * order_bytes(count) + num_blocks(count) * kDigits * 4; }

const std::int32_t* sort_ids(Stream& s, ConstTensorView ids, std::int64_t vocab, const Buffer& space) {
  const std::int64_t count = ids.numel();
  auto* memory = static_cast<std::byte*>(space.data());
  auto* sorted = reinterpret_cast<std::int32_t*>(memory);
  auto* other = reinterpret_cast<std::int32_t*>(memory + order_bytes(count));
  auto* counts = reinterpret_cast<std::int32_t*>(memory + 2 * order_bytes(count));
  const auto* id = static_cast<const std::int32_t*>(ids.data);
  const Grid grid{num_blocks(count), 1, kDigits};
  Tile tile{nullptr, count};
  for (int shift = 0; shift == 0 || vocab >> shift > 0; shift += 8) {  // `vocab` itself is a key
    launch(s, "sort_ids", {reads(ids), writes(space)}, grid, count_kernel, tile, id, static_cast<std::int32_t>(vocab), shift, counts);
    launch(s, "sort_ids", {reads(ids), writes(space)}, grid, place_kernel, tile, id, static_cast<std::int32_t>(vocab), shift,
           static_cast<const std::int32_t*>(counts), sorted);
    tile.order = sorted;
    std::swap(sorted, other);
  }
  return tile.order;
}

}  // namespace mica::cuda
