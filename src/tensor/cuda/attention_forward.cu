// SPDX-License-Identifier: Apache-2.0
#include <cfloat>

#include "attention.hpp"
#include "attention_tiles.hpp"

namespace mica::cuda {

namespace attention {
namespace {

constexpr int kChunks = 4;  // a block writes 128 columns; wider heads take more blocks

/// A block does one tile of queries of one head; the longest rows come first.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) forward(Sizes sizes, int batches, int tiles, Heads<const T> all_q, Heads<const T> all_k,
                                                       Heads<const T> all_v, Heads<T> all_y, float* lse) {
  __shared__ Columns q_columns;
  __shared__ Factor factor;
  __shared__ Weights weights;
  const BlockPart part = part_of_block(batches, sizes.heads, tiles, kChunks);
  const int batch = part.batch, head = part.head, first_column = part.first_column;
  const int tile = tiles - 1 - part.tile;
  const int first = tile * kTile;
  const Place place;
  const Head<const T> q = head_of(all_q, sizes, batch, head);
  const Head<const T> k = head_of(all_k, sizes, batch, head / sizes.group);
  const Head<const T> v = head_of(all_v, sizes, batch, head / sizes.group);

  Sums<kChunks> sums = {};
  float largest[kOwn], weight[kOwn];  // largest: of the row so far, in base 2; weight: this thread's part of the sum of weights
#pragma unroll
  for (int i = 0; i < kOwn; ++i) largest[i] = -FLT_MAX, weight[i] = 0;

  for (int key_tile = 0; key_tile <= tile; ++key_tile) {
    float scores[kOwn][kOther];
    multiply_tokens(q, first, k, key_tile * kTile, sizes, place, q_columns, factor.columns, scores);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float most = largest[i];
#pragma unroll
      for (int j = 0; j < kOther; ++j) {
        const bool is_hidden = key_tile == tile && place.other(j) > place.own(i);
        scores[i][j] = is_hidden ? -FLT_MAX : scores[i][j] * (sizes.factor * kLog2E);
        most = fmaxf(most, scores[i][j]);
      }
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, distance));
      const float correction = exp2f(largest[i] - most);
      largest[i] = most;
      weight[i] *= correction;
#pragma unroll
      for (int j = 0; j < kOther; ++j) {
        scores[i][j] = exp2f(scores[i][j] - most);
        weight[i] += scores[i][j];
      }
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[chunk][i][c] *= correction;
      }
    }
    store_weights(weights, place, scores);
    add_weighted_rows(weights, v, key_tile * kTile, sizes, place, first_column, factor.rows, sums);
  }

#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) weight[i] += __shfl_xor_sync(0xffffffffU, weight[i], distance);
    const int token = first + place.own(i);
    if (lse != nullptr && first_column == 0 && place.lane == 0 && token < sizes.seq_len) {
      lse[(static_cast<std::int64_t>(batch) * sizes.heads + head) * sizes.seq_len + token] = largest[i] / kLog2E + logf(weight[i]);
    }
    weight[i] = 1.0F / weight[i];
  }
  store_sums(head_of(all_y, sizes, batch, head), sizes, place, first, first_column, weight, sums);
}

}  // namespace
}  // namespace attention

void own_attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) {
  with_element(in.q.dtype, [&](auto element) {
    using T = decltype(element);
    const attention::QkvHeads<T, true> heads(shape, in);
    const auto sizes = attention::sizes_of<T>(shape, heads.in_packs() && is_aligned(y.data, 16));
    launch(s, "attention", {reads(in.q), reads(in.k), reads(in.v), writes(y), writes(lse)},
           attention::grid_of_parts(shape, shape.heads, attention::kChunks), attention::forward<T>, sizes, static_cast<int>(shape.batch),
           static_cast<int>(attention::num_tiles(shape)), heads.q, heads.k, heads.v,
           attention::Heads<T>{static_cast<T*>(y.data), shape.q_width()}, static_cast<float*>(lse.data));
  });
}

}  // namespace mica::cuda
