// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "mica/tensor/kernels.hpp"

#include "attention_shares.hpp"
#include "loops.hpp"
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

/// Sums of a group's dK and dV.
class KeyGradients {
 public:
  KeyGradients(const AttentionShape& shape, Carver& carver)
      : sizes_(shape), numel_(sizes_.padded_keys * sizes_.padded_dim), dkeys_(carver.floats(numel_)), dvalues_(carver.floats(numel_)) {}

  [[nodiscard]] float* dkeys(std::int64_t key) const { return dkeys_ + key * sizes_.padded_dim; }
  [[nodiscard]] float* dvalues(std::int64_t key) const { return dvalues_ + key * sizes_.padded_dim; }

  void clear() const {
    std::fill(dkeys_, dkeys_ + numel_, 0.0F);
    std::fill(dvalues_, dvalues_ + numel_, 0.0F);
  }
  /// Adds those of keys [first, last) of another.
  void add(const KeyGradients& other, std::int64_t first, std::int64_t last) const {
    const std::int64_t begin = first * sizes_.padded_dim, end = last * sizes_.padded_dim;
    loops().add(DType::f32, dkeys_, other.dkeys_, dkeys_, begin, end);
    loops().add(DType::f32, dvalues_, other.dvalues_, dvalues_, begin, end);
  }
  /// Stores those of keys [first, last).
  void store(std::int64_t first, std::int64_t last, const HeadRows<std::byte>& d_in) const {
    cpu::store(dkeys(first), nullptr, first, last - first, sizes_, d_in.k);
    cpu::store(dvalues(first), nullptr, first, last - first, sizes_, d_in.v);
  }

 private:
  HeadSizes sizes_;
  std::int64_t numel_;
  float *dkeys_, *dvalues_;  // [T/64*64][Dp]
};

/// Bytes of `count` Works: a Forward or Backward (below), or KeyGradients.
template <class Work>
[[nodiscard]] std::int64_t bytes_of(const AttentionShape& shape, int count) {
  Carver carver(nullptr);
  Work(shape, carver);
  return count * carver.bytes();
}
/// The one that has `index` others before it in `memory`.
template <class Work>
[[nodiscard]] Work work_at(const AttentionShape& shape, int index, void* memory) {
  Carver carver(static_cast<std::byte*>(memory) + bytes_of<Work>(shape, index));
  return Work(shape, carver);
}

/// Each thread has memory for all keys of a head, so for long sequences no more threads share heads than fit into this: 512 MiB, or twice
/// what q, k, v, y and dy take in f32. A model keeps more of these in each of its blocks.
[[nodiscard]] inline std::int64_t most_shared_scratch(const AttentionShape& shape) {
  const std::int64_t tensors = 4 * shape.batch * shape.seq_len * (shape.qkv_width() + 2 * shape.q_width());
  return std::max(std::int64_t{512} << 20, 2 * tensors);
}
/// As many threads as there are, or as take no more than most_shared_scratch().
/// @param unshared  threads that would not have to share: they may take more memory
/// @param bytes  what shares take
template <class Bytes>
[[nodiscard]] AttentionShares shares_of(const AttentionShape& shape, std::int64_t unshared, Bytes bytes) {
  const std::int64_t limit = most_shared_scratch(shape), of_one = bytes(AttentionShares(shape, 1));  // no thread takes less
  auto threads = static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), std::max(unshared, limit / of_one)));
  while (threads > unshared && bytes(AttentionShares(shape, threads)) > limit) --threads;
  return {shape, threads};
}

template <class Forward>
[[nodiscard]] AttentionShares forward_shares(const AttentionShape& shape) {
  return shares_of(shape, shape.batch * shape.heads, [&](const AttentionShares& s) { return bytes_of<Forward>(shape, s.num_threads()); });
}
template <class Backward>
[[nodiscard]] std::int64_t backward_bytes(const AttentionShape& shape, const AttentionShares& shares) {
  return bytes_of<Backward>(shape, shares.num_threads()) + bytes_of<KeyGradients>(shape, shares.num_sums_before(shares.num_threads()));
}
template <class Backward>
[[nodiscard]] AttentionShares backward_shares(const AttentionShape& shape) {
  return shares_of(shape, shape.batch * shape.num_kv_heads(), [&](const AttentionShares& s) { return backward_bytes<Backward>(shape, s); });
}

template <class Forward>
[[nodiscard]] std::int64_t forward_scratch_bytes(const AttentionShape& shape) {
  return bytes_of<Forward>(shape, forward_shares<Forward>(shape).num_threads());
}

/// Each thread makes a Forward of (shape, carver); its pack(rows) gets the keys and values that a group's heads share, and its
/// run(first, last, q, y, lse) queries [first, last) of each head.
template <class Forward>
void forward_heads(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch) {
  const AttentionShares shares = forward_shares<Forward>(shape);
  parallel_ranges_by_thread(shares.num_threads(), 1, [&](std::int64_t, std::int64_t, int thread) {
    Forward forward = work_at<Forward>(shape, thread, scratch);
    bool is_packed = false;
    shares.for_each_head(thread, [&](std::int64_t i, std::int64_t first, std::int64_t last) {
      const std::int64_t batch = i / shape.heads, head = i % shape.heads;
      const auto rows = head_rows(shape, in, batch, head);
      if (!is_packed || head % shape.group() == 0) forward.pack(rows);
      is_packed = true;
      forward.run(first, last, rows.q, rows_of(y, shape, batch, head * shape.head_dim, shape.q_width()),
                  lse ? static_cast<float*>(lse.data) + i * shape.seq_len : nullptr);
    });
  });
}

template <class Backward>
[[nodiscard]] std::int64_t backward_scratch_bytes(const AttentionShape& shape) {
  return backward_bytes<Backward>(shape, backward_shares<Backward>(shape));
}

/// The same for a Backward: pack(rows, sums), and run(first, last, head), which adds to the sums. What threads have summed up of a group
/// that they share is added in their order once all are done.
template <class Backward>
void backward_heads(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                    const Qkv& d_in, void* scratch) {
  const AttentionShares shares = backward_shares<Backward>(shape);
  const std::int64_t width = shape.q_width(), group = shape.group();
  std::byte* const sums = static_cast<std::byte*>(scratch) + bytes_of<Backward>(shape, shares.num_threads());
  const auto sums_at = [&](int index) { return work_at<KeyGradients>(shape, index, sums); };
  const auto last_sums_of = [&](int thread) { return shares.num_sums_before(thread + 1) - 1; };
  const auto gradient_rows_of = [&](std::int64_t i) { return head_rows(shape, d_in, i / shape.heads, i % shape.heads); };

  parallel_ranges_by_thread(shares.num_threads(), 1, [&](std::int64_t, std::int64_t, int thread) {
    Backward backward = work_at<Backward>(shape, thread, scratch);
    KeyGradients gradients = sums_at(shares.num_sums_before(thread));
    bool is_whole = false;  // whether all of the group so far is this thread's
    bool is_first = true;
    shares.for_each_head(thread, [&](std::int64_t i, std::int64_t first, std::int64_t last) {
      const std::int64_t batch = i / shape.heads, index = i % shape.heads, column = index * shape.head_dim;
      const HeadGradients head{.in = head_rows(shape, in, batch, index),
                               .dy = rows_of(dy, shape, batch, column, width),
                               .y = rows_of(y, shape, batch, column, width),
                               .lse = static_cast<const float*>(lse.data) + i * shape.seq_len,
                               .d_in = gradient_rows_of(i)};
      const bool begins_group = index % group == 0 && first == 0;
      if (begins_group) {
        is_whole = true;
        if (!is_first) gradients = sums_at(last_sums_of(thread));
      }
      if (begins_group || is_first) {
        gradients.clear();
        backward.pack(head.in, gradients);
      }
      is_first = false;
      backward.run(first, last, head);
      if (is_whole && (index + 1) % group == 0 && last == shape.seq_len) gradients.store(0, shape.seq_len, head.d_in);
    });
  });
  if (!shares.are_groups_shared()) return;
  parallel_ranges_by_thread(shares.num_threads(), 1, [&](std::int64_t, std::int64_t, int thread) {
    shares.for_each_shared_group([&](std::int64_t shared, int first, int last) {
      if (thread < first || thread >= last) return;
      const std::int64_t begin = shape.seq_len * (thread - first) / (last - first),
                         end = shape.seq_len * (thread - first + 1) / (last - first);
      const int first_part = last_sums_of(first);  // behind it those of the other threads, one of each
      const KeyGradients all = sums_at(first_part);
      for (int other = first + 1; other < last; ++other) {
        if (!shares.is_empty(other)) all.add(sums_at(first_part + other - first), begin, end);
      }
      all.store(begin, end, gradient_rows_of(shared * group));
    });
  });
}

}  // namespace mica::cpu
