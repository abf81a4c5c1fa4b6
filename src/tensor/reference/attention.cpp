// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {
/// q, k and v apart, as doubles.
struct Parts {
  Values q, k, v;
};

/// Columns [begin, begin + count) of a matrix.
Values columns(const Values& x, std::int64_t cols, std::int64_t begin, std::int64_t count) {
  Values out;
  for (std::size_t row = 0; row * static_cast<std::size_t>(cols) < x.size(); ++row) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(at(static_cast<std::int64_t>(row), cols, begin));
    out.insert(out.end(), first, first + count);
  }
  return out;
}

Parts parts_of(const AttentionShape& shape, const ConstQkv& in) {
  if (!in.is_packed()) return {values(in.q), values(in.k), values(in.v)};
  const Values all = values(in.q);
  const std::int64_t q = shape.q_width(), kv = shape.kv_width(), width = shape.qkv_width();
  return {columns(all, width, 0, q), columns(all, width, q, kv), columns(all, width, q + kv, kv)};
}

void store_parts(const AttentionShape& shape, const Qkv& out, const Parts& parts) {
  if (!out.is_packed()) {
    store(out.q, parts.q);
    store(out.k, parts.k);
    return store(out.v, parts.v);
  }
  Values all;
  const auto append = [&](const Values& part, std::int64_t row, std::int64_t cols) {
    const auto first = part.begin() + static_cast<std::ptrdiff_t>(row * cols);
    all.insert(all.end(), first, first + cols);
  };
  for (std::int64_t row = 0; row < shape.batch * shape.seq_len; ++row) {
    append(parts.q, row, shape.q_width());
    append(parts.k, row, shape.kv_width());
    append(parts.v, row, shape.kv_width());
  }
  store(out.q, all);
}

/// Where one head's vectors lie in q and y [B,T,H*D], and in k and v [B,T,K*D].
struct Head {
  const AttentionShape& shape;
  std::int64_t b, h;

  [[nodiscard]] std::size_t row(std::int64_t t) const { return at(b * shape.seq_len + t, shape.q_width(), h * shape.head_dim); }
  [[nodiscard]] std::size_t kv_row(std::int64_t t) const {
    return at(b * shape.seq_len + t, shape.kv_width(), h / shape.group() * shape.head_dim);
  }
  [[nodiscard]] std::size_t lse(std::int64_t t) const { return at(b * shape.heads + h, shape.seq_len, t); }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }
};

double dot(const Values& a, std::size_t i, const Values& b, std::size_t j, std::int64_t n) {
  double sum = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(n); ++d) sum += a[i + d] * b[j + d];
  return sum;
}

void add_scaled(Values& a, std::size_t i, double factor, const Values& b, std::size_t j, std::int64_t n) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(n); ++d) a[i + d] += factor * b[j + d];
}

template <bool kConst>
void check_shapes(const AttentionShape& shape, const BasicQkv<kConst>& in, const ConstTensorView& y, const ConstTensorView& lse) {
  const std::int64_t rows = shape.batch * shape.seq_len;
  expect_numel(in.q, rows * (in.is_packed() ? shape.qkv_width() : shape.q_width()), "attention: q [B,T,H*D]");
  expect_numel(in.k, rows * shape.kv_width(), "attention: k [B,T,K*D]");
  expect_numel(in.v, rows * shape.kv_width(), "attention: v [B,T,K*D]");
  expect_numel(y, rows * shape.q_width(), "attention: y [B,T,C]");
  expect_numel(lse, rows * shape.heads, "attention: lse [B,H,T]");
}

template <class F>
void for_each_head(const AttentionShape& shape, F f) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) f(Head{shape, b, h});
  }
}
}  // namespace

void ReferenceKernels::attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) {
  check_shapes(shape, in, y, lse);
  s.submit("attention", {reads(in.q), reads(in.k), reads(in.v), writes(y), writes(lse)}, [=] {
    const auto [q, k, v] = parts_of(shape, in);
    Values ys(static_cast<std::size_t>(y.numel()));
    Values lses(static_cast<std::size_t>(shape.batch * shape.heads * shape.seq_len));
    for_each_head(shape, [&, &q = q, &k = k, &v = v](const Head& head) {
      for (std::int64_t t = 0; t < shape.seq_len; ++t) {
        Values scores;
        double max = -std::numeric_limits<double>::infinity();
        for (std::int64_t u = 0; u <= t; ++u) {
          scores.push_back(head.scale() * dot(q, head.row(t), k, head.kv_row(u), shape.head_dim));
          max = std::max(max, scores.back());
        }
        double sum = 0;
        for (const double e : scores) sum += std::exp(e - max);
        lses[head.lse(t)] = max + std::log(sum);
        for (std::int64_t u = 0; u <= t; ++u) {
          const double p = std::exp(scores[static_cast<std::size_t>(u)] - max) / sum;
          add_scaled(ys, head.row(t), p, v, head.kv_row(u), shape.head_dim);
        }
      }
    });
    store(y, ys);
    store(lse, lses);
  });
}

void ReferenceKernels::attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y,
                                          ConstTensorView lse, const Qkv& d_in) {
  check_shapes(shape, in, y, lse);
  check_shapes(shape, d_in, dy, lse);
  s.submit("attention_backward",
           {reads(dy), reads(in.q), reads(in.k), reads(in.v), reads(y), reads(lse), writes(d_in.q), writes(d_in.k), writes(d_in.v)}, [=] {
             const Values dys = values(dy), ys = values(y), lses = values(lse);
             const Parts x = parts_of(shape, in);
             Parts d{Values(x.q.size()), Values(x.k.size()), Values(x.v.size())};
             const std::int64_t n = shape.head_dim;
             for_each_head(shape, [&](const Head& head) {
               for (std::int64_t t = 0; t < shape.seq_len; ++t) {
                 const double delta = dot(dys, head.row(t), ys, head.row(t), n);  // sum over u of p * dp
                 for (std::int64_t u = 0; u <= t; ++u) {
                   const double score = head.scale() * dot(x.q, head.row(t), x.k, head.kv_row(u), n);
                   const double p = std::exp(score - lses[head.lse(t)]);
                   const double dp = dot(dys, head.row(t), x.v, head.kv_row(u), n);
                   const double ds = p * (dp - delta) * head.scale();
                   add_scaled(d.v, head.kv_row(u), p, dys, head.row(t), n);
                   add_scaled(d.q, head.row(t), ds, x.k, head.kv_row(u), n);
                   add_scaled(d.k, head.kv_row(u), ds, x.q, head.row(t), n);
                 }
               }
             });
             store_parts(shape, d_in, d);
           });
}

namespace {

/// Rotates the pairs of every head of one token.
void rotate_token(Values& x, std::int64_t row, std::int64_t width, double position, const Values& frequencies) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t head = 0; half > 0 && head < width; head += 2 * half) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = position * frequencies[static_cast<std::size_t>(i)];
      double &a = x[at(row, width, head + i)], &b = x[at(row, width, head + half + i)];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
  }
}

}  // namespace

void ReferenceKernels::attention_cached(Stream& s, const AttentionShape& shape, const ConstQkv& in, std::span<const double> inv_freq,
                                        const AttentionCache& cache, std::span<const CachedRow> rows, TensorView y) {
  check_shapes(shape, in, y, {});
  invariant(std::ssize(rows) == shape.batch, "attention_cached: a slot for each sequence");
  s.submit("attention_cached", {reads(in.q), reads(in.k), reads(in.v), writes(cache.keys), writes(cache.values), writes(y)},
           [=, frequencies = Values(inv_freq.begin(), inv_freq.end()), rows = std::vector<CachedRow>(rows.begin(), rows.end())] {
             auto [q, k, v] = parts_of(shape, in);
             Values keys = values(cache.keys), all_values = values(cache.values), ys(static_cast<std::size_t>(y.numel()));
             const std::int64_t n = shape.head_dim, width = shape.kv_width();
             const auto cached = [&](std::int64_t b, std::int64_t position) {
               return rows[static_cast<std::size_t>(b)].slot * cache.capacity() + position;
             };
             for (std::int64_t token = 0; token < shape.batch * shape.seq_len; ++token) {
               const std::int64_t b = token / shape.seq_len;
               const std::int64_t position = rows[static_cast<std::size_t>(b)].past + token % shape.seq_len;
               rotate_token(q, token, shape.q_width(), static_cast<double>(position), frequencies);
               rotate_token(k, token, width, static_cast<double>(position), frequencies);
               for (std::int64_t i = 0; i < width; ++i) {
                 keys[at(cached(b, position), width, i)] = k[at(token, width, i)];
                 all_values[at(cached(b, position), width, i)] = v[at(token, width, i)];
               }
             }
             for_each_head(shape, [&, &q = q](const Head& head) {
               const std::int64_t column = head.h / shape.group() * n;
               for (std::int64_t t = 0; t < shape.seq_len; ++t) {
                 const std::int64_t last = rows[static_cast<std::size_t>(head.b)].past + t;
                 Values scores;
                 for (std::int64_t u = 0; u <= last; ++u) {
                   scores.push_back(head.scale() * dot(q, head.row(t), keys, at(cached(head.b, u), width, column), n));
                 }
                 const double max = *std::max_element(scores.begin(), scores.end());
                 double sum = 0;
                 for (const double e : scores) sum += std::exp(e - max);
                 for (std::int64_t u = 0; u <= last; ++u) {
                   const double p = std::exp(scores[static_cast<std::size_t>(u)] - max) / sum;
                   add_scaled(ys, head.row(t), p, all_values, at(cached(head.b, u), width, column), n);
                 }
               }
             });
             store(cache.keys, keys);
             store(cache.values, all_values);
             store(y, ys);
           });
}

void ReferenceKernels::rotary(Stream& s, ConstTensorView x, std::span<const double> inv_freq, Turn turn, TensorView y) {
  expect_numel(y, x.numel(), "rotary: y like x");
  const auto half = static_cast<std::int64_t>(inv_freq.size());
  invariant(x.shape.num_dims() == 3 && x.shape[2] % (2 * half) == 0, "rotary: x [B,T,H*D]");
  s.submit("rotary", {reads(x), writes(y)}, [=, frequencies = Values(inv_freq.begin(), inv_freq.end())] {
    Values v = values(x);
    const std::int64_t width = x.shape[2];
    for (std::int64_t row = 0; row < x.shape.rows(); ++row) {
      const double direction = turn == Turn::forward ? 1 : -1;
      rotate_token(v, row, width, direction * static_cast<double>(row % x.shape[1]), frequencies);
    }
    store(y, v);
  });
}

}  // namespace mica::reference
