// SPDX-License-Identifier: Apache-2.0
#include "paired_attention.hpp"

#include <algorithm>
#include <cmath>

#include "attention_head.hpp"
#include "loops.hpp"
#include "pair_tiles.hpp"

namespace mica::cpu {

bool is_paired(DType dtype) { return dtype == DType::bf16 && pair_tiles() != nullptr; }

namespace {

constexpr std::int64_t kPairStride = kPanel / 2 + kTilePad;

/// Rows [row, row + count) as dense bf16 rows of sizes.padded_dim.
void load_pairs(const Rows<const std::byte>& rows, std::int64_t row, std::int64_t count, const HeadSizes& sizes, Pair* dst) {
  pair_tiles()->load_rows(rows.at(row), rows.stride, count, sizes.head_dim, sizes.padded_dim, dst);
}

/// panel[cols][kPanel] = transpose of x[rows, cols] of whole pairs (stride ld); the columns past `rows` become zero.
void transpose_pairs(const Pair* x, std::int64_t ld, std::int64_t rows, std::int64_t cols, Pair* panel) {
  tiles().transpose_to_panel(reinterpret_cast<const float*>(x), ld, rows, cols, reinterpret_cast<float*>(panel));
}

/// One thread's forward, see forward_heads().
class PairedForward {
 public:
  PairedForward(const AttentionShape& shape, Carver& carver)
      : sizes_(shape),
        seq_len_(shape.seq_len),
        factor_(factor_of(shape)),
        dim_pairs_(sizes_.padded_dim / 2),
        score_stride_(sizes_.padded_keys + kTilePad),
        p_stride_(sizes_.padded_keys / 2 + kTilePad) {
    key_panels_ = carver.part<Pair>(sizes_.padded_keys * dim_pairs_);
    values_ = carver.part<Pair>(sizes_.padded_keys / 2 * sizes_.padded_dim);
    rows_ = carver.part<Pair>(kPanel * dim_pairs_);
    scores_ = carver.floats(kPanel * score_stride_);
    p_ = carver.part<Pair>(kStep * p_stride_);
    out_ = carver.floats(kStep * sizes_.padded_dim);
  }

  void pack(const HeadRows<const std::byte>& in) {
    for (std::int64_t key = 0; key < seq_len_; key += kPanel) {
      const std::int64_t keys = std::min(kPanel, seq_len_ - key);
      load_pairs(in.k, key, keys, sizes_, rows_);
      transpose_pairs(rows_, dim_pairs_, keys, dim_pairs_, key_panels_ + key * dim_pairs_);
      load_pairs(in.v, key, keys, sizes_, rows_);
      pair_tiles()->interleave_rows(rows_, dim_pairs_, keys, sizes_.padded_dim, values_ + key / 2 * sizes_.padded_dim, sizes_.padded_dim);
    }
  }

  void run(std::int64_t begin, std::int64_t end, const Rows<const std::byte>& q, const Rows<std::byte>& y, float* lse) {
    for (std::int64_t first = begin; first < end; first += kPanel) {
      const std::int64_t rows = std::min(kPanel, end - first);
      load_pairs(q, first, rows, sizes_, rows_);
      for (std::int64_t key = 0; key < first; key += kPanel) scores(0, rows, key, kPanel);
      for (std::int64_t row = 0; row < rows; row += kStep) scores(row, std::min(kStep, rows - row), first, row + kStep);
      for (std::int64_t step = 0; step < rows; step += kStep) {
        const std::int64_t step_rows = std::min(kStep, rows - step);
        const std::int64_t keys = first + step + kStep;  // of the step's last row, rounded up
        float shifts[kStep], sums[kStep];
        pair_tiles()->softmax_rows(scores_ + step * score_stride_, score_stride_, step_rows, first + step + 1, keys, factor_, p_, p_stride_,
                                   shifts, sums);
        if (lse) {
          for (std::int64_t r = 0; r < step_rows; ++r) lse[first + step + r] = shifts[r] + std::log(sums[r]);
        }
        for (std::int64_t r = 0; r < step_rows; ++r) sums[r] = 1.0F / sums[r];
        pair_tiles()->multiply(p_, p_stride_, values_, sizes_.padded_dim, out_, sizes_.padded_dim, step_rows, sizes_.padded_dim,
                               divide_up(std::min(seq_len_, keys), 2), false);
        store(out_, sums, first + step, step_rows, sizes_, y);
      }
    }
  }

 private:
  /// Unscaled scores of the tile's queries [row, row + rows) with `cols` keys of the panel that begins at `key`.
  void scores(std::int64_t row, std::int64_t rows, std::int64_t key, std::int64_t cols) {
    pair_tiles()->multiply(rows_ + row * dim_pairs_, dim_pairs_, key_panels_ + key * dim_pairs_, kPanel,
                           scores_ + row * score_stride_ + key, score_stride_, rows, cols, dim_pairs_, false);
  }

  HeadSizes sizes_;
  std::int64_t seq_len_;
  float factor_;
  std::int64_t dim_pairs_, score_stride_, p_stride_;
  Pair* key_panels_;  // [T/64][Dp/2][64]
  Pair* values_;      // [T/2][Dp]
  Pair* rows_;        // [64][Dp/2] keys or values to be packed, then the tile's queries
  float* scores_;     // [64][score_stride]
  Pair* p_;           // [16][p_stride]
  float* out_;        // [16][Dp]
};

/// One thread's backward, see backward_heads().
class PairedBackward {
 public:
  PairedBackward(const AttentionShape& shape, Carver& carver)
      : sizes_(shape), seq_len_(shape.seq_len), factor_(factor_of(shape)), dim_pairs_(sizes_.padded_dim / 2) {
    const std::int64_t keys = sizes_.padded_keys, dim = sizes_.padded_dim;
    keys_ = carver.part<Pair>(keys * dim_pairs_);
    values_ = carver.part<Pair>(keys * dim_pairs_);
    key_pairs_ = carver.part<Pair>(keys / 2 * dim);
    rows_ = carver.part<Pair>(kPanel * dim_pairs_);
    query_panel_ = carver.part<Pair>(dim_pairs_ * kPanel);
    dout_panel_ = carver.part<Pair>(dim_pairs_ * kPanel);
    query_pairs_ = carver.part<Pair>(kPanel / 2 * dim);
    dout_pairs_ = carver.part<Pair>(kPanel / 2 * dim);
    dqueries_ = carver.floats(kPanel * dim);
    scores_ = carver.floats(kPanel * kScoreStride);
    dscores_ = carver.floats(kPanel * kScoreStride);
    p_ = carver.part<Pair>(kPanel * kPairStride);
    ds_ = carver.part<Pair>(kPanel * kPairStride);
    ds_pairs_ = carver.part<Pair>(kPanel / 2 * kPanel);
    ds_rows_ = carver.part<Pair>(kPanel * kPanel);
    delta_ = carver.floats(kPanel);
    lse_ = carver.floats(kPanel);
  }

  void pack(const HeadRows<const std::byte>& in, const KeyGradients& sums) {
    const std::int64_t dim = sizes_.padded_dim;
    load_pairs(in.k, 0, seq_len_, sizes_, keys_);
    load_pairs(in.v, 0, seq_len_, sizes_, values_);
    // Of keys past T, P and dS are zero, so what these are multiplied with must be numbers.
    std::fill(keys_ + seq_len_ * dim_pairs_, keys_ + sizes_.padded_keys * dim_pairs_, 0U);
    std::fill(values_ + seq_len_ * dim_pairs_, values_ + sizes_.padded_keys * dim_pairs_, 0U);
    pair_tiles()->interleave_rows(keys_, dim_pairs_, sizes_.padded_keys, dim, key_pairs_, dim);
    dkeys_ = sums.dkeys(0);
    dvalues_ = sums.dvalues(0);
  }

  /// Writes dQ of queries [begin, end) of the head and adds their part of dK and dV to the group's sums.
  void run(std::int64_t begin, std::int64_t end, const HeadGradients& head) {
    const std::int64_t dim = sizes_.padded_dim;
    for (std::int64_t first = begin; first < end; first += kPanel) {
      const std::int64_t rows = std::min(kPanel, end - first);
      load_tile(head.in.q, first, rows, query_panel_, query_pairs_);
      load_tile(head.dy, first, rows, dout_panel_, dout_pairs_);
      for (std::int64_t r = 0; r < rows; ++r) {
        delta_[r] = loops().dot(head.dy.dtype, head.dy.at(first + r), head.y.dtype, head.y.at(first + r), sizes_.head_dim);
        lse_[r] = head.lse[first + r];
      }
      std::fill(delta_ + rows, delta_ + kPanel, 0.0F);
      std::fill(lse_ + rows, lse_ + kPanel, 0.0F);
      std::fill(dqueries_, dqueries_ + rows * dim, 0.0F);
      for (std::int64_t key = 0; key < first; key += kPanel) panel(key, rows);
      diagonal_panel(first, rows);
      store(dqueries_, nullptr, first, rows, sizes_, head.d_in.q);
    }
  }

 private:
  /// The tile's rows of Q or dO, zeros behind them: transposed in `panel` [Dp/2][64], interleaved in `pairs` [32][Dp].
  void load_tile(const Rows<const std::byte>& from, std::int64_t first, std::int64_t rows, Pair* panel, Pair* pairs) {
    load_pairs(from, first, rows, sizes_, rows_);
    std::fill(rows_ + rows * dim_pairs_, rows_ + kPanel * dim_pairs_, 0U);
    transpose_pairs(rows_, dim_pairs_, kPanel, dim_pairs_, panel);
    pair_tiles()->interleave_rows(rows_, dim_pairs_, kPanel, sizes_.padded_dim, pairs, sizes_.padded_dim);
  }

  /// Adds the contributions of the tile's queries and of a panel of keys before them to dQ, dK and dV.
  void panel(std::int64_t key, std::int64_t rows) {
    const std::int64_t cols = round_up(rows, kTilePad);
    key_rows(key, 0, kPanel, 0, rows, cols, -kPanel);
    transpose_pairs(ds_pairs_, kPanel, kPanel / 2, cols, ds_rows_);
    add_dqueries(key, 0, rows, kPanel);
  }
  /// The same for the tile's own keys, where a query sees those up to its own: in steps, which leave most of the others out.
  void diagonal_panel(std::int64_t key, std::int64_t rows) {
    const std::int64_t cols = round_up(rows, kTilePad);
    for (std::int64_t step = 0; step < cols; step += kStep) key_rows(key, step, kStep, step, rows, cols, step);
    transpose_pairs(ds_pairs_, kPanel, cols / 2, cols, ds_rows_);
    for (std::int64_t step = 0; step < rows; step += kStep) add_dqueries(key, step, std::min(kStep, rows - step), step + kStep);
  }

  /// P^T and dS^T of `count` keys of a panel, from its row on, and their part of dV and dK, for queries [query, cols) of the tile.
  /// @param first  of the first key: the query from which on it is seen
  void key_rows(std::int64_t panel_key, std::int64_t row, std::int64_t count, std::int64_t query, std::int64_t queries, std::int64_t cols,
                std::int64_t first) {
    const PairTiles& t = *pair_tiles();
    const std::int64_t dim = sizes_.padded_dim, key = panel_key + row;
    float *scores = scores_ + row * kScoreStride, *dscores = dscores_ + row * kScoreStride;
    Pair *p = p_ + row * kPairStride, *ds = ds_ + row * kPairStride;
    t.multiply(keys_ + key * dim_pairs_, dim_pairs_, query_panel_ + query, kPanel, scores + query, kScoreStride, count, cols - query,
               dim_pairs_, false);
    t.multiply(values_ + key * dim_pairs_, dim_pairs_, dout_panel_ + query, kPanel, dscores + query, kScoreStride, count, cols - query,
               dim_pairs_, false);
    t.softmax_backward_columns(scores, dscores, kScoreStride, count, first, queries, cols, factor_, lse_, delta_, p, ds, kPairStride);
    const std::int64_t skipped = query / 2, pairs = (cols - query) / 2;
    t.multiply(p + skipped, kPairStride, dout_pairs_ + skipped * dim, dim, dvalues_ + key * dim, dim, count, dim, pairs, true);
    t.multiply(ds + skipped, kPairStride, query_pairs_ + skipped * dim, dim, dkeys_ + key * dim, dim, count, dim, pairs, true);
    t.interleave_rows(ds, kPairStride, count, cols, ds_pairs_ + row / 2 * kPanel, kPanel);
  }

  /// dQ of the tile's queries [row, row + rows) from the panel's first `keys` keys.
  void add_dqueries(std::int64_t key, std::int64_t row, std::int64_t rows, std::int64_t keys) {
    const std::int64_t dim = sizes_.padded_dim;
    pair_tiles()->multiply(ds_rows_ + row * kPanel, kPanel, key_pairs_ + key / 2 * dim, dim, dqueries_ + row * dim, dim, rows, dim,
                           keys / 2, true);
  }

  HeadSizes sizes_;
  std::int64_t seq_len_;
  float factor_;
  std::int64_t dim_pairs_;
  Pair *keys_, *values_;                         // [T/64*64][Dp/2]
  Pair* key_pairs_;                              // [T/64*32][Dp]
  float *dkeys_ = nullptr, *dvalues_ = nullptr;  // of the group, [T/64*64][Dp]
  Pair* rows_;                                   // [64][Dp/2]
  Pair *query_panel_, *dout_panel_;              // [Dp/2][64]
  Pair *query_pairs_, *dout_pairs_;              // [32][Dp]
  float* dqueries_;                              // [64][Dp]
  float *scores_, *dscores_;                     // [64][kScoreStride], a row for each key
  Pair *p_, *ds_;                                // [64][kPairStride], a row for each key
  Pair* ds_pairs_;                               // [32][64]: pairs of keys, a column for each query
  Pair* ds_rows_;                                // [64][64], the first 32 of a row: dS with a row for each query
  float *delta_, *lse_;                          // [64]: of a query
};

}  // namespace

std::int64_t paired_attention_scratch_bytes(const AttentionShape& shape) { return forward_scratch_bytes<PairedForward>(shape); }

void paired_attention_forward(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch) {
  forward_heads<PairedForward>(shape, in, y, lse, scratch);
}

std::int64_t paired_attention_backward_scratch_bytes(const AttentionShape& shape) { return backward_scratch_bytes<PairedBackward>(shape); }

void paired_attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                               const Qkv& d_in, void* scratch) {
  backward_heads<PairedBackward>(shape, dy, in, y, lse, d_in, scratch);
}

}  // namespace mica::cpu
