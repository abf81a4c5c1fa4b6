// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"
#include "attention_tiles.hpp"

namespace mica::cuda {

namespace attention {
namespace {

constexpr int kWarp = 32;
constexpr int kQueryChunks = 4;  // a block of dq writes 128 columns
constexpr int kKeyChunks = 2;    // a block of dk and dv writes 64 of each: the registers have no room for more

template <class T>
struct Backward {
  Heads<const T> q, k, v, y, dy;
  Heads<T> dq, dk, dv;
  const float* lse;
  float* delta;  // [B, H, T] sum of dy * y
};

/// Computes delta; a warp does one row of one head.
template <class T>
__global__ void row_products(Sizes sizes, std::int64_t rows, Backward<T> t) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;  // [B, T, H]
  float sum = 0;
  if (row < rows) {
    for (int i = static_cast<int>(threadIdx.x) % kWarp; i < sizes.head_dim; i += kWarp) {
      sum += to_float(t.y.data[row * sizes.head_dim + i]) * to_float(t.dy.data[row * sizes.head_dim + i]);
    }
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  if (row >= rows || threadIdx.x % kWarp != 0) return;
  const std::int64_t token = row / sizes.heads;
  const std::int64_t head = token / sizes.seq_len * sizes.heads + row % sizes.heads;  // [B, H]
  t.delta[head * sizes.seq_len + token % sizes.seq_len] = sum;
}

/// Recomputes a weight from its score, and the score's gradient from the weight's.
struct Weight {
  float value, score_gradient;
};
__device__ inline Weight weight_again(bool is_hidden, float score, float gradient, const Sizes& sizes, float lse, float delta) {
  if (is_hidden) return {0, 0};
  const float value = exp2f((score * sizes.factor - lse) * kLog2E);
  return {value, value * (gradient - delta)};
}

/// A block computes dq of one tile of queries of one head; the longest rows come first.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) backward_queries(Sizes sizes, int batches, int tiles, Backward<T> t) {
  __shared__ Columns own_columns;
  __shared__ Factor factor;
  __shared__ Weights weights;
  const BlockPart part = part_of_block(batches, sizes.heads, tiles, kQueryChunks);
  const int batch = part.batch, head = part.head, first_column = part.first_column;
  const int tile = tiles - 1 - part.tile;
  const int first = tile * kTile;
  const Place place;
  const Head<const T> q = head_of(t.q, sizes, batch, head), dy = head_of(t.dy, sizes, batch, head);
  const Head<const T> k = head_of(t.k, sizes, batch, head / sizes.group), v = head_of(t.v, sizes, batch, head / sizes.group);

  float lse[kOwn] = {}, delta[kOwn] = {}, scale[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    scale[i] = sizes.factor;
    const int token = first + place.own(i);
    if (token >= sizes.seq_len) continue;
    const std::int64_t row = (static_cast<std::int64_t>(batch) * sizes.heads + head) * sizes.seq_len + token;
    lse[i] = t.lse[row];
    delta[i] = t.delta[row];
  }
  Sums<kQueryChunks> sums = {};
  for (int key_tile = 0; key_tile <= tile; ++key_tile) {
    float scores[kOwn][kOther], gradients[kOwn][kOther];
    multiply_tokens(q, first, k, key_tile * kTile, sizes, place, own_columns, factor.columns, scores);
    multiply_tokens(dy, first, v, key_tile * kTile, sizes, place, own_columns, factor.columns, gradients);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < kOther; ++j) {
        const bool is_hidden = key_tile == tile && place.other(j) > place.own(i);
        scores[i][j] = weight_again(is_hidden, scores[i][j], gradients[i][j], sizes, lse[i], delta[i]).score_gradient;
      }
    }
    store_weights(weights, place, scores);
    add_weighted_rows(weights, k, key_tile * kTile, sizes, place, first_column, factor.rows, sums);
  }
  store_sums(head_of(t.dq, sizes, batch, head), sizes, place, first, first_column, scale, sums);
}

/// A block computes dk and dv of one tile of keys, summed over the heads that share them. Tiles seen by most queries come first.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) backward_keys(Sizes sizes, int batches, int tiles, Backward<T> t) {
  __shared__ Columns own_columns;
  __shared__ Factor factor;
  __shared__ Weights weights;
  __shared__ float lse[kTile], delta[kTile];
  const BlockPart part = part_of_block(batches, sizes.heads / sizes.group, tiles, kKeyChunks);
  const int batch = part.batch, kv_head = part.head, tile = part.tile, first_column = part.first_column;
  const int first = tile * kTile;
  const Place place;
  const Head<const T> k = head_of(t.k, sizes, batch, kv_head), v = head_of(t.v, sizes, batch, kv_head);

  Sums<kKeyChunks> dk = {}, dv = {};
  for (int head = kv_head * sizes.group; head < (kv_head + 1) * sizes.group; ++head) {
    const Head<const T> q = head_of(t.q, sizes, batch, head), dy = head_of(t.dy, sizes, batch, head);
    const std::int64_t rows = (static_cast<std::int64_t>(batch) * sizes.heads + head) * sizes.seq_len;
    for (int query_tile = tile; query_tile < tiles; ++query_tile) {
      const int query = query_tile * kTile;
      const int mine = static_cast<int>(threadIdx.x) % kTile;
      __syncthreads();  // all threads are done with the last tile's
      (threadIdx.x < kTile ? lse : delta)[mine] =
          query + mine < sizes.seq_len ? (threadIdx.x < kTile ? t.lse : t.delta)[rows + query + mine] : 0.0F;

      float scores[kOwn][kOther], gradients[kOwn][kOther];
      multiply_tokens(k, first, q, query, sizes, place, own_columns, factor.columns, scores);
      multiply_tokens(v, first, dy, query, sizes, place, own_columns, factor.columns, gradients);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOther; ++j) {
          const int other = place.other(j);
          const bool is_hidden = (query_tile == tile && place.own(i) > other) || query + other >= sizes.seq_len;
          const Weight weight = weight_again(is_hidden, scores[i][j], gradients[i][j], sizes, lse[other], delta[other]);
          scores[i][j] = weight.value;
          gradients[i][j] = weight.score_gradient;
        }
      }
      store_weights(weights, place, scores);
      add_weighted_rows(weights, dy, query, sizes, place, first_column, factor.rows, dv);
      __syncthreads();
      store_weights(weights, place, gradients);
      add_weighted_rows(weights, q, query, sizes, place, first_column, factor.rows, dk);
    }
  }
  float one[kOwn], scale[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) one[i] = 1, scale[i] = sizes.factor;
  store_sums(head_of(t.dv, sizes, batch, kv_head), sizes, place, first, first_column, one, dv);
  store_sums(head_of(t.dk, sizes, batch, kv_head), sizes, place, first, first_column, scale, dk);
}

}  // namespace
}  // namespace attention

void own_attention_backward(Stream& s, Pool& pool, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y,
                            ConstTensorView lse, const Qkv& d_in) {
  using namespace attention;  // NOLINT(google-build-using-namespace)
  const Buffer delta = pool.allocate(shape.batch * shape.heads * shape.seq_len * 4, MemoryRole::workspace, s);
  with_element(in.q.dtype, [&](auto element) {
    using T = decltype(element);
    const QkvHeads<T, true> heads(shape, in);
    const QkvHeads<T, false> gradients(shape, d_in);
    const auto row = [&](ConstTensorView view) { return Heads<const T>{static_cast<const T*>(view.data), shape.q_width()}; };
    const Backward<T> t{heads.q,     heads.k,     heads.v,     row(y),          row(dy),
                        gradients.q, gradients.k, gradients.v, lse.as<float>(), static_cast<float*>(delta.data())};
    const Sizes sizes = sizes_of<T>(shape, heads.in_packs() && gradients.in_packs() && is_aligned(dy.data, 16));
    const auto batches = static_cast<int>(shape.batch);
    const auto tiles = static_cast<int>(num_tiles(shape));
    const std::int64_t rows = shape.batch * shape.seq_len * shape.heads;
    const Access deltas = reads(delta.data(), delta.bytes());
    launch(s, "attention_backward", {reads(y), reads(dy), writes(delta.data(), delta.bytes())},
           Grid{(rows * kWarp + kBlockThreads - 1) / kBlockThreads}, row_products<T>, sizes, rows, t);
    launch(s, "attention_backward", {reads(in.q), reads(in.k), reads(in.v), reads(dy), reads(lse), deltas, writes(d_in.q)},
           grid_of_parts(shape, shape.heads, kQueryChunks), backward_queries<T>, sizes, batches, tiles, t);
    launch(s, "attention_backward",
           {reads(in.q), reads(in.k), reads(in.v), reads(dy), reads(lse), deltas, writes(d_in.q), writes(d_in.k), writes(d_in.v)},
           grid_of_parts(shape, shape.num_kv_heads(), kKeyChunks), backward_keys<T>, sizes, batches, tiles, t);
  });
}

}  // namespace mica::cuda
