#include <algorithm>
#include <cmath>
#include <limits>

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {
/// Where one head's vectors lie in qkv [B,T,3*C] and y [B,T,C].
struct Head {
  const AttentionShape& shape;
  std::int64_t b, h;

  [[nodiscard]] std::int64_t width() const { return shape.heads * shape.head_dim; }
  [[nodiscard]] std::size_t row(std::int64_t t) const { return at(b * shape.seq_len + t, width(), h * shape.head_dim); }
  [[nodiscard]] std::size_t q(std::int64_t t) const { return qkv(t, 0); }
  [[nodiscard]] std::size_t k(std::int64_t t) const { return qkv(t, 1); }
  [[nodiscard]] std::size_t v(std::int64_t t) const { return qkv(t, 2); }
  [[nodiscard]] std::size_t lse(std::int64_t t) const { return at(b * shape.heads + h, shape.seq_len, t); }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }

 private:
  [[nodiscard]] std::size_t qkv(std::int64_t t, std::int64_t part) const {
    return at(b * shape.seq_len + t, 3 * width(), part * width() + h * shape.head_dim);
  }
};

double dot(const Values& a, std::size_t i, const Values& b, std::size_t j, std::int64_t n) {
  double sum = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(n); ++d) sum += a[i + d] * b[j + d];
  return sum;
}

void add_scaled(Values& a, std::size_t i, double factor, const Values& b, std::size_t j, std::int64_t n) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(n); ++d) a[i + d] += factor * b[j + d];
}

void check_shapes(const AttentionShape& shape, const ConstTensorView& qkv, const ConstTensorView& y,
                  const ConstTensorView& lse) {
  const std::int64_t rows = shape.batch * shape.seq_len;
  expect_numel(qkv, rows * 3 * shape.heads * shape.head_dim, "attention: qkv [B,T,3*C]");
  expect_numel(y, rows * shape.heads * shape.head_dim, "attention: y [B,T,C]");
  expect_numel(lse, rows * shape.heads, "attention: lse [B,H,T]");
}

template <class F>
void for_each_head(const AttentionShape& shape, F f) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) f(Head{shape, b, h});
  }
}
}  // namespace

void ReferenceKernels::attention(Stream& s, const AttentionShape& shape, ConstTensorView qkv, TensorView y,
                                 TensorView lse) {
  check_shapes(shape, qkv, y, lse);
  s.submit("attention", {reads(qkv), writes(y), writes(lse)}, [=] {
    const Values xs = values(qkv);
    Values ys(static_cast<std::size_t>(y.numel()));
    Values lses(static_cast<std::size_t>(shape.batch * shape.heads * shape.seq_len));
    for_each_head(shape, [&](const Head& head) {
      for (std::int64_t t = 0; t < shape.seq_len; ++t) {
        Values scores;
        double max = -std::numeric_limits<double>::infinity();
        for (std::int64_t u = 0; u <= t; ++u) {
          scores.push_back(head.scale() * dot(xs, head.q(t), xs, head.k(u), shape.head_dim));
          max = std::max(max, scores.back());
        }
        double sum = 0;
        for (const double e : scores) sum += std::exp(e - max);
        lses[head.lse(t)] = max + std::log(sum);
        for (std::int64_t u = 0; u <= t; ++u) {
          const double p = std::exp(scores[static_cast<std::size_t>(u)] - max) / sum;
          add_scaled(ys, head.row(t), p, xs, head.v(u), shape.head_dim);
        }
      }
    });
    store(y, ys);
    store(lse, lses);
  });
}

void ReferenceKernels::attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy,
                                          ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                                          TensorView dqkv) {
  check_shapes(shape, qkv, y, lse);
  check_shapes(shape, dqkv, dy, lse);
  s.submit("attention_backward", {reads(dy), reads(qkv), reads(y), reads(lse), writes(dqkv)}, [=] {
    const Values dys = values(dy), xs = values(qkv), ys = values(y), lses = values(lse);
    Values dxs(xs.size());
    const std::int64_t n = shape.head_dim;
    for_each_head(shape, [&](const Head& head) {
      for (std::int64_t t = 0; t < shape.seq_len; ++t) {
        const double delta = dot(dys, head.row(t), ys, head.row(t), n);  // sum over u of p * dp
        for (std::int64_t u = 0; u <= t; ++u) {
          const double p = std::exp(head.scale() * dot(xs, head.q(t), xs, head.k(u), n) - lses[head.lse(t)]);
          const double dp = dot(dys, head.row(t), xs, head.v(u), n);
          const double ds = p * (dp - delta) * head.scale();
          add_scaled(dxs, head.v(u), p, dys, head.row(t), n);
          add_scaled(dxs, head.q(t), ds, xs, head.k(u), n);
          add_scaled(dxs, head.k(u), ds, xs, head.q(t), n);
        }
      }
    });
    store(dqkv, dxs);
  });
}

}  // namespace mica::reference
