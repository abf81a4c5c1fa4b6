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
  std::int64_t width;                 // C = H*D

  explicit HeadSizes(const AttentionShape& shape)
      : head_dim(shape.head_dim), padded_dim(round_up(shape.head_dim, kTilePad)),
        padded_keys(round_up(shape.seq_len, kPanel)), width(shape.heads * shape.head_dim) {}
};

/// Hands out parts of a block of memory, 64-byte aligned; with a null base it only counts.
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

/// One head's q, k and v inside qkv [B,T,3*C].
class HeadRows {
 public:
  enum class Part : std::int64_t { query = 0, key = 1, value = 2 };

  HeadRows(const AttentionShape& shape, const void* qkv, DType dtype, std::int64_t batch, std::int64_t head)
      : dtype_(dtype), head_dim_(shape.head_dim), width_(shape.heads * shape.head_dim) {
    first_ = static_cast<const std::byte*>(qkv) + offset(shape, batch, head) * dtype_bytes(dtype);
  }
  /// Elements before row 0 of the head's queries.
  [[nodiscard]] static std::int64_t offset(const AttentionShape& shape, std::int64_t batch, std::int64_t head) {
    return batch * shape.seq_len * 3 * shape.heads * shape.head_dim + head * shape.head_dim;
  }

  [[nodiscard]] DType dtype() const { return dtype_; }
  void load(Part part, std::int64_t row, std::int64_t rows, std::int64_t padded_dim, float* dst) const {
    const std::int64_t element = row * 3 * width_ + static_cast<std::int64_t>(part) * width_;
    tiles().load_rows(first_ + element * dtype_bytes(dtype_), dtype_, 3 * width_, rows, head_dim_, padded_dim, dst);
  }

 private:
  DType dtype_;
  std::int64_t head_dim_, width_;
  const std::byte* first_;
};

}  // namespace mica::cpu
