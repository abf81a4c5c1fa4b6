// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "attention_head.hpp"
#include "paired_attention.hpp"
#include "tiles.hpp"

namespace mica::cpu {

namespace {

/// One thread's forward, see forward_heads().
class Forward {
 public:
  Forward(const AttentionShape& shape, Carver& carver)
      : sizes_(shape), seq_len_(shape.seq_len), factor_(factor_of(shape)), score_stride_(sizes_.padded_keys + kTilePad) {
    key_panels_ = carver.floats(sizes_.padded_keys * shape.head_dim);
    values_ = carver.floats(shape.seq_len * sizes_.padded_dim);
    rows_ = carver.floats(kPanel * sizes_.padded_dim);
    scores_ = carver.floats(kPanel * score_stride_);
    out_ = carver.floats(kPanel * sizes_.padded_dim);
  }

  void pack(const HeadRows<const std::byte>& in) {
    for (std::int64_t key = 0; key < seq_len_; key += kPanel) {
      const std::int64_t keys = std::min(kPanel, seq_len_ - key);
      load(in.k, key, keys, sizes_, rows_);
      tiles().transpose_to_panel(rows_, sizes_.padded_dim, keys, sizes_.head_dim, key_panels_ + key * sizes_.head_dim);
    }
    load(in.v, 0, seq_len_, sizes_, values_);
  }

  void run(std::int64_t begin, std::int64_t end, const Rows<const std::byte>& q, const Rows<std::byte>& y, float* lse) {
    for (std::int64_t first = begin; first < end; first += kPanel) {
      const std::int64_t rows = std::min(kPanel, end - first);
      load(q, first, rows, sizes_, rows_);
      tile_scores(first, rows);
      for (std::int64_t step = 0; step < rows; step += kStep) {
        const std::int64_t step_rows = std::min(kStep, rows - step);
        const std::int64_t keys = first + step + kStep;  // of the step's last row, rounded up
        float* scores = scores_ + step * score_stride_;
        float shifts[kStep], sums[kStep];
        tiles().softmax_rows(scores, score_stride_, step_rows, first + step + 1, keys, factor_, shifts, sums);
        if (lse) {
          for (std::int64_t r = 0; r < step_rows; ++r) lse[first + step + r] = shifts[r] + std::log(sums[r]);
        }
        for (std::int64_t r = 0; r < step_rows; ++r) sums[r] = 1.0F / sums[r];
        tiles().multiply({scores, score_stride_, 1}, values_, sizes_.padded_dim, out_, sizes_.padded_dim, step_rows, sizes_.padded_dim,
                         std::min(seq_len_, keys), false);
        store(out_, sums, first + step, step_rows, sizes_, y);
      }
    }
  }

 private:
  /// Unscaled scores of queries [first, first + rows) with the keys up to and including their own.
  void tile_scores(std::int64_t first, std::int64_t rows) {
    const std::int64_t panel_numel = kPanel * sizes_.head_dim;
    for (std::int64_t key = 0; key < first; key += kPanel) {
      tiles().multiply({rows_, sizes_.padded_dim, 1}, key_panels_ + key / kPanel * panel_numel, kPanel, scores_ + key, score_stride_, rows,
                       kPanel, sizes_.head_dim, false);
    }
    for (std::int64_t row = 0; row < rows; row += kStep) {
      tiles().multiply({rows_ + row * sizes_.padded_dim, sizes_.padded_dim, 1}, key_panels_ + first / kPanel * panel_numel, kPanel,
                       scores_ + row * score_stride_ + first, score_stride_, std::min(kStep, rows - row), row + kStep, sizes_.head_dim,
                       false);
    }
  }

  HeadSizes sizes_;
  std::int64_t seq_len_;
  float factor_;
  std::int64_t score_stride_;
  float* key_panels_;  // [T/64][D][64]
  float* values_;      // [T][Dp]
  float* rows_;        // [64][Dp] keys to be packed, then the tile's queries
  float* scores_;      // [64][score_stride]
  float* out_;         // [64][Dp]
};

}  // namespace

std::int64_t attention_scratch_bytes(const AttentionShape& shape, DType dtype) {
  return is_paired(dtype) ? paired_attention_scratch_bytes(shape) : forward_scratch_bytes<Forward>(shape);
}

void attention_forward(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch) {
  if (is_paired(y.dtype)) return paired_attention_forward(shape, in, y, lse, scratch);
  forward_heads<Forward>(shape, in, y, lse, scratch);
}

}  // namespace mica::cpu
