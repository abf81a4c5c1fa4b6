// SPDX-License-Identifier: Apache-2.0
#include "cached_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.hpp"
#include "attention_head.hpp"
#include "loops.hpp"
#include "parallel.hpp"

namespace mica::cpu {

namespace {

/// Fewer queries than these are not worth packing keys for.
constexpr std::int64_t kFewestTiledQueries = 16;

std::int64_t floats_for(std::int64_t bytes) { return divide_up(bytes, 4); }

}  // namespace

struct CachedAttention::Scratch {
  std::byte* queries;      // [B, T, H*D] of the dtype
  float *cosines, *sines;  // [B*T, D/2]
  float* scores;           // [threads, capacity]
  void* tiles;             // of attention_forward()
  std::int64_t bytes;

  Scratch(const CachedAttention& a, void* memory) {
    Carver carver(static_cast<std::byte*>(memory));
    const std::int64_t tokens = a.shape.batch * a.shape.seq_len, half = std::ssize(a.inv_freq);
    queries = reinterpret_cast<std::byte*>(carver.floats(floats_for(tokens * a.shape.q_width() * dtype_bytes(a.y.dtype))));
    cosines = carver.floats(tokens * half);
    sines = carver.floats(tokens * half);
    scores = carver.floats(threads_for(a.shape.batch * a.shape.heads, 1) * a.cache.capacity());
    const bool any = std::ranges::any_of(a.rows, [&](const CachedRow& row) { return a.starts_by_tiles(row); });
    tiles = carver.floats(any ? floats_for(attention_scratch_bytes(a.one_sequence(), a.y.dtype)) : 0);
    bytes = carver.bytes();
  }
};

bool CachedAttention::starts_by_tiles(const CachedRow& row) const { return row.past == 0 && shape.seq_len >= kFewestTiledQueries; }

AttentionShape CachedAttention::one_sequence() const {
  AttentionShape one = shape;
  one.batch = 1;
  return one;
}

std::int64_t CachedAttention::scratch_bytes() const { return Scratch(*this, nullptr).bytes; }

void CachedAttention::run(void* memory) const {
  const Scratch scratch(*this, memory);
  append(scratch);
  attend(scratch);
}

void CachedAttention::append(const Scratch& scratch) const {
  const std::int64_t half = std::ssize(inv_freq), T = shape.seq_len, element = dtype_bytes(y.dtype);
  const std::int64_t q_width = shape.q_width(), kv_width = shape.kv_width();
  const auto at = [element](const void* data, std::int64_t i) { return static_cast<const std::byte*>(data) + i * element; };
  parallel_ranges(shape.batch * T, row_grain(shape.qkv_width()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const CachedRow& row = rows[static_cast<std::size_t>(token / T)];
      const std::int64_t position = row.past + token % T;
      const std::byte *q = nullptr, *k = nullptr, *v = nullptr;
      if (in.is_packed()) {
        q = at(in.q.data, token * shape.qkv_width());
        k = at(q, q_width);
        v = at(k, kv_width);
      } else {
        q = at(in.q.data, token * q_width);
        k = at(in.k.data, token * kv_width);
        v = at(in.v.data, token * kv_width);
      }
      const std::int64_t cached = (row.slot * cache.capacity() + position) * kv_width * element;
      std::byte* query = scratch.queries + token * q_width * element;
      std::byte* key = static_cast<std::byte*>(cache.keys.data) + cached;
      std::memcpy(static_cast<std::byte*>(cache.values.data) + cached, v, static_cast<std::size_t>(kv_width * element));
      if (half == 0) {
        std::memcpy(query, q, static_cast<std::size_t>(q_width * element));
        std::memcpy(key, k, static_cast<std::size_t>(kv_width * element));
        continue;
      }
      float *cosines = scratch.cosines + token * half, *sines = scratch.sines + token * half;
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * inv_freq[static_cast<std::size_t>(i)];
        cosines[i] = static_cast<float>(std::cos(angle));
        sines[i] = static_cast<float>(std::sin(angle));
      }
      loops().rotate_heads(y.dtype, q, cosines, sines, shape.heads, half, query);
      loops().rotate_heads(y.dtype, k, cosines, sines, shape.num_kv_heads(), half, key);
    }
  });
}

void CachedAttention::attend(const Scratch& scratch) const {
  const std::int64_t T = shape.seq_len, dim = shape.head_dim, element = dtype_bytes(y.dtype);
  const std::int64_t q_width = shape.q_width(), kv_width = shape.kv_width();
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  const auto slot_begin = [&](const CachedRow& row) { return row.slot * cache.capacity() * kv_width; };
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const CachedRow& row = rows[static_cast<std::size_t>(b)];
    if (!starts_by_tiles(row)) continue;
    const ConstTensorView queries(scratch.queries + b * T * q_width * element, {T, q_width}, y.dtype);
    attention_forward(one_sequence(),
                      ConstQkv{queries, cache.keys.slice(slot_begin(row), T * kv_width), cache.values.slice(slot_begin(row), T * kv_width)},
                      y.slice(b * T * q_width, T * q_width), {}, scratch.tiles);
  }
  parallel_ranges_by_thread(shape.batch * shape.heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* scores = scratch.scores + thread * cache.capacity();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t b = i / shape.heads, head = i % shape.heads;
      const CachedRow& row = rows[static_cast<std::size_t>(b)];
      if (starts_by_tiles(row)) continue;
      const std::int64_t first = (slot_begin(row) + head / shape.group() * dim) * element;
      const std::byte* keys = static_cast<const std::byte*>(cache.keys.data) + first;
      const std::byte* values = static_cast<const std::byte*>(cache.values.data) + first;
      for (std::int64_t t = 0; t < T; ++t) {
        const std::int64_t query = ((b * T + t) * q_width + head * dim) * element;
        loops().attend(y.dtype, scratch.queries + query, keys, values, kv_width, row.past + t + 1, dim, factor, scores,
                       static_cast<std::byte*>(y.data) + query);
      }
    }
  });
}

}  // namespace mica::cpu
