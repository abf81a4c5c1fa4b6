// SPDX-License-Identifier: Apache-2.0
#include "embedding.hpp"

#include <algorithm>
#include <cstring>

#include "loops.hpp"
#include "parallel.hpp"

namespace mica::cpu {

namespace {

const std::byte* row_of(ConstTensorView view, std::int64_t row) {
  return static_cast<const std::byte*>(view.data) + row * view.shape.back() * dtype_bytes(view.dtype);
}
std::byte* row_of(TensorView view, std::int64_t row) {
  return static_cast<std::byte*>(view.data) + row * view.shape.back() * dtype_bytes(view.dtype);
}

void check_ids(const std::int32_t* ids, std::int64_t count, std::int64_t vocab) {
  for (std::int64_t i = 0; i < count; ++i) {
    require(ids[i] >= 0 && ids[i] < vocab,
            "embedding: id {} at token {} is not in the vocabulary [0, {}): was the text tokenized with another "
            "vocabulary than model.vocab_size?",
            ids[i], i, vocab);
  }
}

/// Sets a part of a tensor to zero, in parallel: dtokens may be 150 MB.
void zero_rows(TensorView view, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  parallel_ranges(end - begin, row_grain(view.shape.back()), [&](std::int64_t first, std::int64_t last) {
    std::memset(row_of(view, begin + first), 0, static_cast<std::size_t>((last - first) * view.shape.back() * dtype_bytes(view.dtype)));
  });
}

std::int64_t order_bytes(std::int64_t num_ids) { return round_up(num_ids * 4, 64); }
std::int64_t row_sum_numel(std::int64_t width) { return round_up(width, 16); }

}  // namespace

void embedding_forward(ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, TensorView y) {
  const auto* id = ids.as<std::int32_t>();
  const std::int64_t width = y.shape.back();
  const std::int64_t count = ids.numel();
  const std::int64_t seq_len = ids.shape.back();
  check_ids(id, count, tokens.shape[0]);
  parallel_ranges(count, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::byte* token = row_of(tokens, id[i]);
      if (positions) {
        loops().add(y.dtype, token, row_of(positions, i % seq_len), row_of(y, i), 0, width);
      } else {
        std::memcpy(row_of(y, i), token, static_cast<std::size_t>(width * dtype_bytes(y.dtype)));
      }
    }
  });
}

std::int64_t embedding_backward_scratch_bytes(std::int64_t num_ids, std::int64_t width, int threads) {
  return order_bytes(num_ids) + threads * row_sum_numel(width) * 4;
}

void embedding_backward_tokens(ConstTensorView dy, ConstTensorView ids, TensorView dtokens, const RowRange& range, Write mode,
                               void* scratch) {
  const auto* id = ids.as<std::int32_t>();
  const std::int64_t width = dtokens.shape.back();
  check_ids(id, ids.numel(), dtokens.shape[0]);
  if (mode == Write::overwrite) zero_rows(dtokens, range.begin, range.end);

  auto* order = static_cast<std::int32_t*>(scratch);  // numbers of the range's tokens, grouped by id and ascending within an id
  std::int64_t count = 0;
  for (std::int32_t i = 0; i < ids.numel(); ++i) {
    if (id[i] >= range.begin && id[i] < range.end) order[count++] = i;
  }
  std::sort(order, order + count, [id](std::int32_t a, std::int32_t b) { return id[a] != id[b] ? id[a] < id[b] : a < b; });

  auto* sums = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + order_bytes(ids.numel()));
  parallel_ranges_by_thread(count, row_grain(width), [&](std::int64_t begin, std::int64_t end, int thread) {
    float* sum = sums + thread * row_sum_numel(width);
    // An id's tokens belong to the thread whose range holds the first of them.
    const auto starts_id = [&](std::int64_t i) { return i == 0 || id[order[i]] != id[order[i - 1]]; };
    std::int64_t i = begin;
    while (i < end && !starts_id(i)) ++i;
    while (i < end) {
      const std::int64_t first = i++;
      loops().convert(row_of(dy, order[first]), dy.dtype, sum, DType::f32, 0, width);
      for (; i < count && !starts_id(i); ++i) {
        loops().scale(row_of(dy, order[i]), dy.dtype, 1.0F, sum, DType::f32, Write::accumulate, 0, width);
      }
      loops().scale(sum, DType::f32, 1.0F, row_of(dtokens, id[order[first]]), dtokens.dtype, mode, 0, width);
    }
  });
}

void embedding_backward_positions(ConstTensorView dy, std::int64_t seq_len, TensorView dpositions, Write mode, void* scratch) {
  const std::int64_t width = dpositions.shape.back();
  const std::int64_t batch = seq_len == 0 ? 0 : dy.shape.rows() / seq_len;
  auto* sums = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + order_bytes(dy.shape.rows()));
  if (mode == Write::overwrite) zero_rows(dpositions, batch == 0 ? 0 : seq_len, dpositions.shape[0]);
  if (batch == 0) return;
  parallel_ranges_by_thread(seq_len, row_grain(width * batch), [&](std::int64_t begin, std::int64_t end, int thread) {
    float* sum = sums + thread * row_sum_numel(width);
    for (std::int64_t t = begin; t < end; ++t) {
      loops().convert(row_of(dy, t), dy.dtype, sum, DType::f32, 0, width);
      for (std::int64_t b = 1; b < batch; ++b) {
        loops().scale(row_of(dy, b * seq_len + t), dy.dtype, 1.0F, sum, DType::f32, Write::accumulate, 0, width);
      }
      loops().scale(sum, DType::f32, 1.0F, row_of(dpositions, t), dpositions.dtype, mode, 0, width);
    }
  });
}

}  // namespace mica::cpu
