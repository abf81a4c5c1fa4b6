// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "mica/tensor/kernels.hpp"

#include "parallel.hpp"
#include "tiles.hpp"

namespace mica::cpu {

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
  [[nodiscard]] float* floats(std::int64_t count) {
    float* part = base_ ? reinterpret_cast<float*>(base_ + bytes_) : nullptr;
    bytes_ += round_up(count * 4, 64);
    return part;
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

}  // namespace mica::cpu
