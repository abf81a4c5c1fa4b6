// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "attention.hpp"
#include "attention_head.hpp"
#include "loops.hpp"
#include "paired_attention.hpp"
#include "tiles.hpp"

namespace mica::cpu {

namespace {

/// One thread's backward, see backward_heads().
class Backward {
 public:
  Backward(const AttentionShape& shape, Carver& carver) : sizes_(shape), seq_len_(shape.seq_len), factor_(factor_of(shape)) {
    const std::int64_t rows = sizes_.padded_keys * sizes_.padded_dim;
    const std::int64_t tile = kPanel * sizes_.padded_dim;
    key_panels_ = carver.floats(sizes_.padded_keys * shape.head_dim);
    value_panels_ = carver.floats(sizes_.padded_keys * shape.head_dim);
    keys_ = carver.floats(rows);
    queries_ = carver.floats(tile);
    dout_ = carver.floats(tile);
    dqueries_ = carver.floats(tile);
    scores_ = carver.floats(kPanel * kScoreStride);
    dscores_ = carver.floats(kPanel * kScoreStride);
    delta_ = carver.floats(kPanel);
  }

  /// The rows past T stay zero so that whole panels can be used.
  void pack(const HeadRows<const std::byte>& in, const KeyGradients& sums) {
    const std::int64_t dim = sizes_.padded_dim;
    for (std::int64_t key = 0; key < seq_len_; key += kPanel) {
      const std::int64_t keys = std::min(kPanel, seq_len_ - key);
      load(in.k, key, keys, sizes_, keys_ + key * dim);
      tiles().transpose_to_panel(keys_ + key * dim, dim, keys, sizes_.head_dim, key_panels_ + key * sizes_.head_dim);
      load(in.v, key, keys, sizes_, queries_);
      tiles().transpose_to_panel(queries_, dim, keys, sizes_.head_dim, value_panels_ + key * sizes_.head_dim);
    }
    std::fill(keys_ + seq_len_ * dim, keys_ + sizes_.padded_keys * dim, 0.0F);
    dkeys_ = sums.dkeys(0);
    dvalues_ = sums.dvalues(0);
  }

  /// Writes dQ of queries [begin, end) of the head and adds their part of dK and dV to the group's sums.
  void run(std::int64_t begin, std::int64_t end, const HeadGradients& head) {
    const std::int64_t dim = sizes_.padded_dim;
    for (std::int64_t first = begin; first < end; first += kPanel) {
      const std::int64_t rows = std::min(kPanel, end - first);
      load(head.in.q, first, rows, sizes_, queries_);
      load(head.dy, first, rows, sizes_, dout_);
      for (std::int64_t r = 0; r < rows; ++r) {
        delta_[r] = loops().dot(DType::f32, dout_ + r * dim, head.y.dtype, head.y.at(first + r), sizes_.head_dim);
      }
      std::fill(dqueries_, dqueries_ + rows * dim, 0.0F);
      for (std::int64_t key = 0; key <= first; key += kPanel) panel(head.lse + first, key, rows, key == first);
      store(dqueries_, nullptr, first, rows, sizes_, head.d_in.q);
    }
  }

 private:
  /// Adds the contributions of the tile's queries and the keys of one panel to dQ, dK and dV.
  void panel(const float* lse, std::int64_t key, std::int64_t rows, bool is_diagonal) {
    const std::int64_t dim = sizes_.padded_dim;
    const float* key_panel = key_panels_ + key * sizes_.head_dim;
    const float* value_panel = value_panels_ + key * sizes_.head_dim;
    const std::int64_t step = is_diagonal ? kStep : rows;
    for (std::int64_t row = 0; row < rows; row += step) {
      const std::int64_t step_rows = std::min(step, rows - row);
      const std::int64_t cols = is_diagonal ? row + kStep : kPanel;
      tiles().multiply({queries_ + row * dim, dim, 1}, key_panel, kPanel, scores_ + row * kScoreStride, kScoreStride, step_rows, cols,
                       sizes_.head_dim, false);
      tiles().multiply({dout_ + row * dim, dim, 1}, value_panel, kPanel, dscores_ + row * kScoreStride, kScoreStride, step_rows, cols,
                       sizes_.head_dim, false);
      tiles().softmax_backward_rows(scores_ + row * kScoreStride, dscores_ + row * kScoreStride, kScoreStride, step_rows,
                                    is_diagonal ? row + 1 : cols, is_diagonal, cols, factor_, lse + row, delta_ + row);
      tiles().multiply({dscores_ + row * kScoreStride, kScoreStride, 1}, keys_ + key * dim, dim, dqueries_ + row * dim, dim, step_rows, dim,
                       cols, true);
    }
    // Only queries from a step on attend to its keys. Transposed: element (key, query).
    const std::int64_t num_keys = is_diagonal ? rows : kPanel;
    for (std::int64_t k = 0; k < num_keys; k += step) {
      const std::int64_t step_keys = std::min(step, num_keys - k);
      const std::int64_t query = is_diagonal ? k : 0;
      const std::int64_t corner = query * kScoreStride + k;
      tiles().multiply({scores_ + corner, 1, kScoreStride}, dout_ + query * dim, dim, dvalues_ + (key + k) * dim, dim, step_keys, dim,
                       rows - query, true);
      tiles().multiply({dscores_ + corner, 1, kScoreStride}, queries_ + query * dim, dim, dkeys_ + (key + k) * dim, dim, step_keys, dim,
                       rows - query, true);
    }
  }

  HeadSizes sizes_;
  std::int64_t seq_len_;
  float factor_;
  float *key_panels_, *value_panels_;            // [T/64][D][64]
  float* keys_;                                  // [T/64*64][Dp]
  float *dkeys_ = nullptr, *dvalues_ = nullptr;  // of the group, [T/64*64][Dp]
  float *queries_, *dout_, *dqueries_;           // [64][Dp]
  float *scores_, *dscores_;                     // [64][kScoreStride]
  float* delta_;                                 // [64]: sum of dy * y of a row
};

}  // namespace

std::int64_t attention_backward_scratch_bytes(const AttentionShape& shape, DType dtype) {
  return is_paired(dtype) ? paired_attention_backward_scratch_bytes(shape) : backward_scratch_bytes<Backward>(shape);
}

void attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                        const Qkv& d_in, void* scratch) {
  if (is_paired(y.dtype)) return paired_attention_backward(shape, dy, in, y, lse, d_in, scratch);
  backward_heads<Backward>(shape, dy, in, y, lse, d_in, scratch);
}

}  // namespace mica::cpu
