// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "mica/tensor/kernels.hpp"

#include "parallel.hpp"
#include "tiles.hpp"

namespace mica::cpu {

/// Rows of one step along the diagonal panel.
inline constexpr std::int64_t kStep = kTilePad;
/// Between the rows of a block of scores [kPanel, kPanel]: rows a power of two apart would all fall into the same cache sets.
inline constexpr std::int64_t kScoreStride = kPanel + kTilePad;

/// Of the scores.
inline float factor_of(const AttentionShape& shape) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))); }

struct HeadSizes {
  std::int64_t head_dim, padded_dim;  // D; D rounded up to kTilePad
  std::int64_t padded_keys;           // T rounded up to kPanel

  explicit HeadSizes(const AttentionShape& shape)
      : head_dim(shape.head_dim), padded_dim(round_up(shape.head_dim, kTilePad)), padded_keys(round_up(shape.seq_len, kPanel)) {}
};

/// Hands out 64-byte aligned parts of a block of memory; with a null base it only measures how much is needed.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  [[nodiscard]] float* floats(std::int64_t count) { return part<float>(count); }
  template <class T>
  [[nodiscard]] T* part(std::int64_t count) {
    T* const first = base_ ? reinterpret_cast<T*>(base_ + bytes_) : nullptr;
    bytes_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return first;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::int64_t bytes_ = 0;
};

/// One head's rows in a tensor: token t begins t * stride elements after `first`.
template <class Byte>
struct Rows {
  Byte* first;
  std::int64_t stride;
  DType dtype;

  [[nodiscard]] Byte* at(std::int64_t row) const { return first + row * stride * dtype_bytes(dtype); }
};

/// Rows [row, row + count) as dense f32 rows of sizes.padded_dim.
inline void load(const Rows<const std::byte>& rows, std::int64_t row, std::int64_t count, const HeadSizes& sizes, float* dst) {
  tiles().load_rows(rows.at(row), rows.dtype, rows.stride, count, sizes.head_dim, sizes.padded_dim, dst);
}
/// The reverse of load(), with row r multiplied by factors[r] (null: by 1).
inline void store(const float* src, const float* factors, std::int64_t row, std::int64_t count, const HeadSizes& sizes,
                  const Rows<std::byte>& rows) {
  tiles().store_rows(src, sizes.padded_dim, factors, count, sizes.head_dim, rows.at(row), rows.dtype, rows.stride);
}

/// Columns [column, column + D) of sequence `batch` in a tensor whose tokens are `stride` elements apart.
template <bool kConst>
auto rows_of(const BasicTensorView<kConst>& view, const AttentionShape& shape, std::int64_t batch, std::int64_t column,
             std::int64_t stride) {
  using Byte = typename BasicTensorView<kConst>::Byte;
  const std::int64_t element = batch * shape.seq_len * stride + column;
  return Rows<Byte>{static_cast<Byte*>(view.data) + element * dtype_bytes(view.dtype), stride, view.dtype};
}

/// One head's q, k and v (or their gradients), packed or in separate tensors.
template <class Byte>
struct HeadRows {
  Rows<Byte> q, k, v;
};
template <bool kConst>
auto head_rows(const AttentionShape& shape, const BasicQkv<kConst>& in, std::int64_t batch, std::int64_t head) {
  const std::int64_t q_column = head * shape.head_dim, kv_column = head / shape.group() * shape.head_dim;
  const std::int64_t q_width = shape.q_width(), kv_width = shape.kv_width(), all = shape.qkv_width();
  using Byte = typename BasicTensorView<kConst>::Byte;
  if (in.is_packed()) {
    return HeadRows<Byte>{rows_of(in.q, shape, batch, q_column, all), rows_of(in.q, shape, batch, q_width + kv_column, all),
                          rows_of(in.q, shape, batch, q_width + kv_width + kv_column, all)};
  }
  return HeadRows<Byte>{rows_of(in.q, shape, batch, q_column, q_width), rows_of(in.k, shape, batch, kv_column, kv_width),
                        rows_of(in.v, shape, batch, kv_column, kv_width)};
}

/// What backward needs of one head.
struct HeadGradients {
  HeadRows<const std::byte> in;
  Rows<const std::byte> dy, y;
  const float* lse;  // [T]
  HeadRows<std::byte> d_in;
};

/// Bytes of a Forward or Backward (below) for each thread.
template <class Work>
[[nodiscard]] std::int64_t scratch_bytes_of(const AttentionShape& shape, int threads) {
  Carver carver(nullptr);
  for (int thread = 0; thread < threads; ++thread) Work(shape, carver);
  return carver.bytes();
}

/// Each thread makes a Forward of (shape, carver); its pack(rows) gets the keys and values that a group's heads share, and its
/// run(q, y, lse) each head.
template <class Forward>
void forward_heads(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch) {
  const std::int64_t bytes_per_thread = scratch_bytes_of<Forward>(shape, 1);
  parallel_ranges_by_thread(shape.batch * shape.heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Carver carver(static_cast<std::byte*>(scratch) + thread * bytes_per_thread);
    Forward forward(shape, carver);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / shape.heads, head = i % shape.heads;
      const auto rows = head_rows(shape, in, batch, head);
      if (i == begin || head % shape.group() == 0) forward.pack(rows);
      forward.run(rows.q, rows_of(y, shape, batch, head * shape.head_dim, shape.q_width()),
                  lse ? static_cast<float*>(lse.data) + i * shape.seq_len : nullptr);
    }
  });
}

/// The same for a Backward: pack(rows), run(head), and finish(d_in) once a group's heads are done. A group belongs to one thread.
template <class Backward>
void backward_heads(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                    const Qkv& d_in, void* scratch) {
  const std::int64_t width = shape.q_width(), group = shape.group();
  const std::int64_t bytes_per_thread = scratch_bytes_of<Backward>(shape, 1);
  parallel_ranges_by_thread(shape.batch * shape.heads, group, [&](std::int64_t begin, std::int64_t end, int thread) {
    Carver carver(static_cast<std::byte*>(scratch) + thread * bytes_per_thread);
    Backward backward(shape, carver);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / shape.heads, index = i % shape.heads, column = index * shape.head_dim;
      const HeadGradients head{.in = head_rows(shape, in, batch, index),
                               .dy = rows_of(dy, shape, batch, column, width),
                               .y = rows_of(y, shape, batch, column, width),
                               .lse = static_cast<const float*>(lse.data) + i * shape.seq_len,
                               .d_in = head_rows(shape, d_in, batch, index)};
      if (index % group == 0) backward.pack(head.in);
      backward.run(head);
      if ((index + 1) % group == 0) backward.finish(head.d_in);
    }
  });
}

}  // namespace mica::cpu
