// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "mica/tensor/kernels.hpp"

#include "elements.hpp"
#include "launch.hpp"

// Building blocks of the attention kernels. [Note: attention tiles]
// A block of 128 threads works on its own tile of 64 tokens (queries; or keys, for their gradients) and iterates over the tiles of the
// other kind, so that only 64 x 64 scores exist at a time. Products are computed in f32 from shared memory, where the factors are stored
// as columns (32 columns of a head at a time, transposed so that a thread reads four tokens in one access) or as rows. Thread (row group
// 0..15, lane 0..7) has the scores of own tokens 4 * group ... + 3 with the other tile's tokens 4 * lane ... + 3 and
// 32 + 4 * lane ... + 3. A token's sums are added in a fixed order, so the bits never change.
namespace mica::cuda::attention {

constexpr int kTile = 64;
constexpr int kThreads = 128;
constexpr int kDepth = 32;               // columns of a head at a time
constexpr int kColumnPitch = kTile + 4;  // floats from one column to the next: the extra four avoid bank conflicts
constexpr int kRowPitch = kDepth + 4;
constexpr int kOwn = 4;    // own tokens of a thread
constexpr int kOther = 8;  // tokens of the other tile
constexpr int kLanes = kTile / kOther;

/// Shared memory that is read in accesses of 16 bytes.
template <int kRows, int kPitch>
struct alignas(16) Table {
  float number[kRows][kPitch];
  [[nodiscard]] __device__ float* operator[](int row) { return number[row]; }
  [[nodiscard]] __device__ const float* operator[](int row) const { return number[row]; }
};
/// kDepth columns of a tile of tokens.
using Columns = Table<kDepth, kColumnPitch>;
/// The same as rows.
using RowsOf = Table<kTile, kRowPitch>;
/// Weights of all pairs of two tiles: [slot of an other token][own token], see token_of_slot().
using Weights = Table<kTile, kColumnPitch>;

/// A factor of a product, as columns or as rows: both forms use the same memory, one after the other.
union Factor {
  Columns columns;
  RowsOf rows;
};

/// Tokens of one head: token t begins at data + t * stride.
template <class T>
struct Head {
  T* data;
  std::int64_t stride;
};
/// [B, T, heads * D] inside rows of `stride` elements.
template <class T>
struct Heads {
  T* data;
  std::int64_t stride;
};

struct Sizes {
  int seq_len, heads, group, head_dim;  // group: heads that share one k and v
  float factor;                         // of the scores
  bool in_packs;                        // the address and length of all rows of all heads are multiples of 16 bytes
};

template <class T>
__device__ inline Head<T> head_of(const Heads<T>& all, const Sizes& sizes, int batch, int head) {
  return {all.data + batch * sizes.seq_len * all.stride + static_cast<std::int64_t>(head) * sizes.head_dim, all.stride};
}

/// A block's output: columns from first_column on of one tile of one head. Blocks of all heads of a tile are consecutive; those for
/// further columns of wide heads come after all tiles.
struct BlockPart {
  int batch, head, tile, first_column;
};
__device__ inline BlockPart part_of_block(int batches, int heads, int tiles, int chunks) {
  const auto block = static_cast<int>(blockIdx.x);
  return {block / heads % batches, block % heads, block / heads / batches % tiles, block / heads / batches / tiles * chunks * kDepth};
}

struct Place {
  int row_group = static_cast<int>(threadIdx.x) / kLanes;
  int lane = static_cast<int>(threadIdx.x) % kLanes;
  /// Index in its tile.
  [[nodiscard]] __device__ int own(int i) const { return row_group * kOwn + i; }
  [[nodiscard]] __device__ int other(int j) const { return lane * 4 + j % 4 + kTile / 2 * (j / 4); }
};

/// Weights of neighbouring lanes are in neighbouring slots, so that they are stored without bank conflicts.
__device__ inline int token_of_slot(int slot) { return slot % kLanes * 4 + slot / kLanes % 4 + kTile / 2 * (slot / (4 * kLanes)); }
__device__ inline int slot_of(const Place& place, int j) { return j * kLanes + place.lane; }

constexpr int kFetched = kDepth * kTile / kThreads;  // elements that a thread loads: half a row of a tile's columns

/// This thread's part of columns [column, column + kDepth) of tokens [first, first + kTile); zero outside.
template <class T>
__device__ inline void fetch(const Head<const T>& head, const Sizes& sizes, int first, int column, float (&x)[kFetched]) {
  const int token = first + static_cast<int>(threadIdx.x) % kTile;
  column += static_cast<int>(threadIdx.x) / kTile * kFetched;
  const T* from = head.data + token * head.stride + column;
  const int count = token < sizes.seq_len ? sizes.head_dim - column : 0;
  if (sizes.in_packs) {
    constexpr int kPack = Pack<T>::kNumel;
#pragma unroll
    for (int p = 0; p < kFetched / kPack; ++p) {
      Pack<T> pack{};
      if (p * kPack < count) pack = reinterpret_cast<const Pack<T>*>(from)[p];
#pragma unroll
      for (int i = 0; i < kPack; ++i) x[p * kPack + i] = to_float(pack.element[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kFetched; ++i) x[i] = i < count ? to_float(from[i]) : 0.0F;
  }
}

template <class T>
__device__ inline void bring(Columns& columns, const Head<const T>& head, const Sizes& sizes, int first, int column) {
  float x[kFetched];
  fetch(head, sizes, first, column, x);
#pragma unroll
  for (int i = 0; i < kFetched; ++i) columns[static_cast<int>(threadIdx.x) / kTile * kFetched + i][threadIdx.x % kTile] = x[i];
}
template <class T>
__device__ inline void bring(RowsOf& rows, const Head<const T>& head, const Sizes& sizes, int first, int column) {
  float x[kFetched];
  fetch(head, sizes, first, column, x);
#pragma unroll
  for (int i = 0; i < kFetched; i += 4) {
    float* to = &rows[static_cast<int>(threadIdx.x) % kTile][threadIdx.x / kTile * kFetched + i];
    *reinterpret_cast<float4*>(to) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  }
}

__device__ inline void read4(const float* from, float* x) {
  const float4 packed = *reinterpret_cast<const float4*>(from);
  x[0] = packed.x, x[1] = packed.y, x[2] = packed.z, x[3] = packed.w;
}

/// scores[i][j] = own token i times other token j over all columns of the heads.
template <class T>
__device__ inline void multiply_tokens(const Head<const T>& own, int own_first, const Head<const T>& other, int other_first,
                                       const Sizes& sizes, const Place& place, Columns& own_columns, Columns& other_columns,
                                       float (&scores)[kOwn][kOther]) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < kOther; ++j) scores[i][j] = 0;
  }
  for (int column = 0; column < sizes.head_dim; column += kDepth) {
    __syncthreads();
    bring(own_columns, own, sizes, own_first, column);
    bring(other_columns, other, sizes, other_first, column);
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < kDepth; ++c) {
      float a[kOwn], b[kOther];
      read4(&own_columns[c][place.own(0)], a);
      read4(&other_columns[c][place.other(0)], b);
      read4(&other_columns[c][place.other(4)], b + 4);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOther; ++j) scores[i][j] += a[i] * b[j];
      }
    }
  }
}

/// Stores the calling thread's weights; all threads may read them after the next __syncthreads().
__device__ inline void store_weights(Weights& weights, const Place& place, const float (&mine)[kOwn][kOther]) {
#pragma unroll
  for (int j = 0; j < kOther; ++j) {
    *reinterpret_cast<float4*>(&weights[slot_of(place, j)][place.own(0)]) = make_float4(mine[0][j], mine[1][j], mine[2][j], mine[3][j]);
  }
}

/// Sums of columns [first, first + kChunks * kDepth) of a head: for the tokens own(0..3), the columns 4 * lane ... + 3 of each chunk of
/// kDepth.
template <int kChunks>
using Sums = float[kChunks][kOwn][4];

/// sums += weights times rows of the other tile.
template <class T, int kChunks>
__device__ inline void add_weighted_rows(const Weights& weights, const Head<const T>& other, int other_first, const Sizes& sizes,
                                         const Place& place, int first_column, RowsOf& rows, Sums<kChunks>& sums) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int column = first_column + chunk * kDepth;
    if (column < sizes.head_dim) {
      __syncthreads();
      bring(rows, other, sizes, other_first, column);
      __syncthreads();
#pragma unroll 8
      for (int slot = 0; slot < kTile; ++slot) {
        float w[kOwn], x[4];
        read4(&weights[slot][place.own(0)], w);
        read4(&rows[token_of_slot(slot)][place.lane * 4], x);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) sums[chunk][i][c] += w[i] * x[c];
        }
      }
    }
  }
}

/// Writes factor[i] * sums to the tokens from `first` on.
template <class T, int kChunks>
__device__ inline void store_sums(const Head<T>& head, const Sizes& sizes, const Place& place, int first, int first_column,
                                  const float (&factor)[kOwn], const Sums<kChunks>& sums) {
  struct alignas(4 * sizeof(T)) Four {
    T element[4];
  };
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int token = first + place.own(i);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = first_column + chunk * kDepth + place.lane * 4;
      const int count = token < sizes.seq_len ? sizes.head_dim - column : 0;
      T* to = head.data + token * head.stride + column;
      Four four;
#pragma unroll
      for (int c = 0; c < 4; ++c) four.element[c] = from_float<T>(factor[i] * sums[chunk][i][c]);
      if (sizes.in_packs) {
        if (count > 0) *reinterpret_cast<Four*>(to) = four;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (c < count) to[c] = four.element[c];
        }
      }
    }
  }
}

/// exp(x) is exp2(x * kLog2E).
constexpr float kLog2E = 1.44269504F;

/// q, k and v (or their gradients) as kernel arguments.
template <class T, bool kConst>
struct QkvHeads {
  using Element = std::conditional_t<kConst, const T, T>;
  Heads<Element> q, k, v;

  QkvHeads(const AttentionShape& shape, const BasicQkv<kConst>& qkv) {
    auto* data = static_cast<Element*>(qkv.q.data);
    if (qkv.is_packed()) {
      q = {data, shape.qkv_width()};
      k = {data + shape.q_width(), shape.qkv_width()};
      v = {data + shape.q_width() + shape.kv_width(), shape.qkv_width()};
    } else {
      q = {data, shape.q_width()};
      k = {static_cast<Element*>(qkv.k.data), shape.kv_width()};
      v = {static_cast<Element*>(qkv.v.data), shape.kv_width()};
    }
  }
  [[nodiscard]] bool in_packs() const { return is_aligned(q.data, 16) && is_aligned(k.data, 16) && is_aligned(v.data, 16); }
};

template <class T>
[[nodiscard]] Sizes sizes_of(const AttentionShape& shape, bool in_packs) {
  return {static_cast<int>(shape.seq_len),
          static_cast<int>(shape.heads),
          static_cast<int>(shape.group()),
          static_cast<int>(shape.head_dim),
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
          in_packs && shape.head_dim % Pack<T>::kNumel == 0};
}

[[nodiscard]] inline std::int64_t num_tiles(const AttentionShape& shape) { return (shape.seq_len + kTile - 1) / kTile; }
/// The number of blocks for part_of_block(), with this many chunks of columns each.
[[nodiscard]] inline Grid grid_of_parts(const AttentionShape& shape, std::int64_t heads, std::int64_t chunks) {
  const std::int64_t width = chunks * kDepth;
  return {.x = shape.batch * heads * num_tiles(shape) * ((shape.head_dim + width - 1) / width), .threads = kThreads};
}

}  // namespace mica::cuda::attention
