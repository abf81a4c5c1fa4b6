// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "attention_head.hpp"
#include "parallel.hpp"
#include "tiles.hpp"

namespace mica::cpu {

namespace {

/// Rows of one step along the diagonal panel.
constexpr std::int64_t kStep = kTilePad;

/// What one thread holds in forward.
struct ForwardScratch {
  float* key_panels;  // [T/64][D][64]
  float* values;      // [T][Dp]
  float* rows;        // [64][Dp] keys to be packed, then the tile's queries
  float* scores;      // [64][score_stride]
  float* out;         // [64][Dp]
  std::int64_t score_stride;

  ForwardScratch(const AttentionShape& shape, Carver& carver) {
    const HeadSizes sizes(shape);
    // kTilePad more than the keys: rows a power of two apart would all fall into the same cache sets.
    score_stride = sizes.padded_keys + kTilePad;
    key_panels = carver.floats(sizes.padded_keys * shape.head_dim);
    values = carver.floats(shape.seq_len * sizes.padded_dim);
    rows = carver.floats(kPanel * sizes.padded_dim);
    scores = carver.floats(kPanel * score_stride);
    out = carver.floats(kPanel * sizes.padded_dim);
  }
};

/// Unscaled scores of queries [first, first + rows) with the keys up to and including their own.
void tile_scores(const ForwardScratch& s, const HeadSizes& sizes, std::int64_t first, std::int64_t rows) {
  const std::int64_t panel_numel = kPanel * sizes.head_dim;
  for (std::int64_t key = 0; key < first; key += kPanel) {
    tiles().multiply({s.rows, sizes.padded_dim, 1}, s.key_panels + key / kPanel * panel_numel, kPanel, s.scores + key, s.score_stride, rows,
                     kPanel, sizes.head_dim, false);
  }
  for (std::int64_t row = 0; row < rows; row += kStep) {
    tiles().multiply({s.rows + row * sizes.padded_dim, sizes.padded_dim, 1}, s.key_panels + first / kPanel * panel_numel, kPanel,
                     s.scores + row * s.score_stride + first, s.score_stride, std::min(kStep, rows - row), row + kStep, sizes.head_dim,
                     false);
  }
}

/// Packs the keys and values that the heads of one group share.
void pack(const AttentionShape& shape, const HeadRows<const std::byte>& in, const ForwardScratch& s) {
  const HeadSizes sizes(shape);
  for (std::int64_t key = 0; key < shape.seq_len; key += kPanel) {
    const std::int64_t keys = std::min(kPanel, shape.seq_len - key);
    load(in.k, key, keys, sizes, s.rows);
    tiles().transpose_to_panel(s.rows, sizes.padded_dim, keys, shape.head_dim, s.key_panels + key * shape.head_dim);
  }
  load(in.v, 0, shape.seq_len, sizes, s.values);
}

void forward_head(const AttentionShape& shape, const Rows<const std::byte>& q, const Rows<std::byte>& y, float* lse,
                  const ForwardScratch& s) {
  const HeadSizes sizes(shape);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  for (std::int64_t first = 0; first < shape.seq_len; first += kPanel) {
    const std::int64_t rows = std::min(kPanel, shape.seq_len - first);
    load(q, first, rows, sizes, s.rows);
    tile_scores(s, sizes, first, rows);
    for (std::int64_t step = 0; step < rows; step += kStep) {
      const std::int64_t step_rows = std::min(kStep, rows - step);
      const std::int64_t keys = first + step + kStep;  // of the step's last row, rounded up
      float* scores = s.scores + step * s.score_stride;
      float shifts[kStep], sums[kStep];
      tiles().softmax_rows(scores, s.score_stride, step_rows, first + step + 1, keys, factor, shifts, sums);
      if (lse) {
        for (std::int64_t r = 0; r < step_rows; ++r) lse[first + step + r] = shifts[r] + std::log(sums[r]);
      }
      for (std::int64_t r = 0; r < step_rows; ++r) sums[r] = 1.0F / sums[r];
      tiles().multiply({scores, s.score_stride, 1}, s.values, sizes.padded_dim, s.out, sizes.padded_dim, step_rows, sizes.padded_dim,
                       std::min(shape.seq_len, keys), false);
      store(s.out, sums, first + step, step_rows, sizes, y);
    }
  }
}

}  // namespace

std::int64_t attention_scratch_bytes(const AttentionShape& shape, int threads) {
  Carver carver(nullptr);
  for (int thread = 0; thread < threads; ++thread) ForwardScratch(shape, carver);
  return carver.bytes();
}

void attention_forward(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch) {
  const std::int64_t bytes_per_thread = attention_scratch_bytes(shape, 1);
  parallel_ranges_by_thread(shape.batch * shape.heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Carver carver(static_cast<std::byte*>(scratch) + thread * bytes_per_thread);
    const ForwardScratch mine(shape, carver);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / shape.heads;
      const std::int64_t head = i % shape.heads;
      const auto rows = head_rows(shape, in, batch, head);
      if (i == begin || head % shape.group() == 0) pack(shape, rows, mine);
      float* head_lse = lse ? static_cast<float*>(lse.data) + i * shape.seq_len : nullptr;
      forward_head(shape, rows.q, rows_of(y, shape, batch, head * shape.head_dim, shape.q_width()), head_lse, mine);
    }
  });
}

}  // namespace mica::cpu
