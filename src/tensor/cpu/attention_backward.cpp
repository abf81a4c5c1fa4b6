// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention.hpp"
#include "attention_head.hpp"
#include "loops.hpp"
#include "parallel.hpp"
#include "tiles.hpp"

namespace mica::cpu {

namespace {

constexpr std::int64_t kBackwardStep = kTilePad;
/// Rows of the score blocks: not a power of two, see ForwardScratch.
constexpr std::int64_t kScoreStride = kPanel + kTilePad;

/// What one thread holds in backward.
struct BackwardScratch {
  float *key_panels, *value_panels;  // [T/64][D][64]
  float *keys, *dkeys, *dvalues;     // [T/64*64][Dp]
  float *queries, *dout, *dqueries;  // [64][Dp]
  float *scores, *dscores;           // [64][kScoreStride]
  float* delta;                      // [64]: sum of dy * y of a row

  BackwardScratch(const AttentionShape& shape, Carver& carver) {
    const HeadSizes sizes(shape);
    const std::int64_t rows = sizes.padded_keys * sizes.padded_dim;
    const std::int64_t tile = kPanel * sizes.padded_dim;
    key_panels = carver.floats(sizes.padded_keys * shape.head_dim);
    value_panels = carver.floats(sizes.padded_keys * shape.head_dim);
    keys = carver.floats(rows);
    dkeys = carver.floats(rows);
    dvalues = carver.floats(rows);
    queries = carver.floats(tile);
    dout = carver.floats(tile);
    dqueries = carver.floats(tile);
    scores = carver.floats(kPanel * kScoreStride);
    dscores = carver.floats(kPanel * kScoreStride);
    delta = carver.floats(kPanel);
  }
};

/// One head's slices of the tensors.
struct Head {
  HeadRows<const std::byte> in;
  Rows<const std::byte> dy, y;
  const float* lse;  // [T]
  HeadRows<std::byte> d_in;
};

class BackwardTile {
 public:
  BackwardTile(const AttentionShape& shape, const BackwardScratch& scratch, const float* lse, std::int64_t first)
      : sizes_(shape),
        s_(scratch),
        lse_(lse),
        first_(first),
        rows_(std::min(kPanel, shape.seq_len - first)),
        factor_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))) {}

  /// Adds the contributions of queries [first, first + rows) and the keys of one panel to dQ, dK and dV.
  void panel(std::int64_t key) {
    const bool diagonal = key == first_;
    const std::int64_t dim = sizes_.padded_dim;
    const float* key_panel = s_.key_panels + key * sizes_.head_dim;
    const float* value_panel = s_.value_panels + key * sizes_.head_dim;
    const std::int64_t step = diagonal ? kBackwardStep : rows_;
    for (std::int64_t row = 0; row < rows_; row += step) {
      const std::int64_t step_rows = std::min(step, rows_ - row);
      const std::int64_t cols = diagonal ? row + kBackwardStep : kPanel;
      tiles().multiply({s_.queries + row * dim, dim, 1}, key_panel, kPanel, s_.scores + row * kScoreStride, kScoreStride, step_rows, cols,
                       sizes_.head_dim, false);
      tiles().multiply({s_.dout + row * dim, dim, 1}, value_panel, kPanel, s_.dscores + row * kScoreStride, kScoreStride, step_rows, cols,
                       sizes_.head_dim, false);
      tiles().softmax_backward_rows(s_.scores + row * kScoreStride, s_.dscores + row * kScoreStride, kScoreStride, step_rows,
                                    diagonal ? row + 1 : cols, diagonal, cols, factor_, lse_ + first_ + row, s_.delta + row);
      tiles().multiply({s_.dscores + row * kScoreStride, kScoreStride, 1}, s_.keys + key * dim, dim, s_.dqueries + row * dim, dim,
                       step_rows, dim, cols, true);
    }
    // Only queries from a step on attend to its keys. Transposed: element (key, query).
    const std::int64_t num_keys = diagonal ? rows_ : kPanel;
    for (std::int64_t k = 0; k < num_keys; k += step) {
      const std::int64_t step_keys = std::min(step, num_keys - k);
      const std::int64_t query = diagonal ? k : 0;
      const std::int64_t corner = query * kScoreStride + k;
      tiles().multiply({s_.scores + corner, 1, kScoreStride}, s_.dout + query * dim, dim, s_.dvalues + (key + k) * dim, dim, step_keys, dim,
                       rows_ - query, true);
      tiles().multiply({s_.dscores + corner, 1, kScoreStride}, s_.queries + query * dim, dim, s_.dkeys + (key + k) * dim, dim, step_keys,
                       dim, rows_ - query, true);
    }
  }

 private:
  HeadSizes sizes_;
  const BackwardScratch& s_;
  const float* lse_;
  std::int64_t first_, rows_;
  float factor_;
};

/// Packs the keys and values that the heads of one group share; the rows past T stay zero so that whole panels can be
/// used. Their gradients start at zero.
void pack(const AttentionShape& shape, const HeadRows<const std::byte>& in, const BackwardScratch& s) {
  const HeadSizes sizes(shape);
  const std::int64_t dim = sizes.padded_dim;
  for (std::int64_t key = 0; key < shape.seq_len; key += kPanel) {
    const std::int64_t keys = std::min(kPanel, shape.seq_len - key);
    load(in.k, key, keys, sizes, s.keys + key * dim);
    tiles().transpose_to_panel(s.keys + key * dim, dim, keys, shape.head_dim, s.key_panels + key * shape.head_dim);
    load(in.v, key, keys, sizes, s.queries);
    tiles().transpose_to_panel(s.queries, dim, keys, shape.head_dim, s.value_panels + key * shape.head_dim);
  }
  std::fill(s.keys + shape.seq_len * dim, s.keys + sizes.padded_keys * dim, 0.0F);
  std::fill(s.dkeys, s.dkeys + sizes.padded_keys * dim, 0.0F);
  std::fill(s.dvalues, s.dvalues + sizes.padded_keys * dim, 0.0F);
}

/// Writes the head's dQ and adds its dK and dV to those of its group.
void backward_head(const AttentionShape& shape, const Head& head, const BackwardScratch& s) {
  const HeadSizes sizes(shape);
  const std::int64_t dim = sizes.padded_dim;
  for (std::int64_t first = 0; first < shape.seq_len; first += kPanel) {
    const std::int64_t rows = std::min(kPanel, shape.seq_len - first);
    load(head.in.q, first, rows, sizes, s.queries);
    load(head.dy, first, rows, sizes, s.dout);
    for (std::int64_t r = 0; r < rows; ++r) {
      s.delta[r] = loops().dot(DType::f32, s.dout + r * dim, head.y.dtype, head.y.at(first + r), shape.head_dim);
    }
    std::fill(s.dqueries, s.dqueries + rows * dim, 0.0F);
    BackwardTile tile(shape, s, head.lse, first);
    for (std::int64_t key = 0; key <= first; key += kPanel) tile.panel(key);
    store(s.dqueries, nullptr, first, rows, sizes, head.d_in.q);
  }
}

}  // namespace

std::int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int threads) {
  Carver carver(nullptr);
  for (int thread = 0; thread < threads; ++thread) BackwardScratch(shape, carver);
  return carver.bytes();
}

void attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                        const Qkv& d_in, void* scratch) {
  const HeadSizes sizes(shape);
  const std::int64_t width = shape.q_width(), group = shape.group();
  const std::int64_t bytes_per_thread = attention_backward_scratch_bytes(shape, 1);
  parallel_ranges_by_thread(shape.batch * shape.heads, group, [&](std::int64_t begin, std::int64_t end, int thread) {
    Carver carver(static_cast<std::byte*>(scratch) + thread * bytes_per_thread);
    const BackwardScratch mine(shape, carver);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / shape.heads, index = i % shape.heads, column = index * shape.head_dim;
      const Head head{.in = head_rows(shape, in, batch, index),
                      .dy = rows_of(dy, shape, batch, column, width),
                      .y = rows_of(y, shape, batch, column, width),
                      .lse = static_cast<const float*>(lse.data) + i * shape.seq_len,
                      .d_in = head_rows(shape, d_in, batch, index)};
      if (index % group == 0) pack(shape, head.in, mine);
      backward_head(shape, head, mine);
      if ((index + 1) % group == 0) {
        store(mine.dkeys, nullptr, 0, shape.seq_len, sizes, head.d_in.k);
        store(mine.dvalues, nullptr, 0, shape.seq_len, sizes, head.d_in.v);
      }
    }
  });
}

}  // namespace mica::cpu
