// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"
#include "mica/tensor/random.hpp"

// The oracle itself: literal known answers, and finite differences in f64 for every backward.
namespace mica {
namespace {

/// A tensor of doubles (or int32) in the test's own memory.
template <class T>
struct Owned {
  std::vector<T> values;
  Shape shape;

  Owned(Shape s, T value = T(0)) : values(static_cast<std::size_t>(s.numel()), value), shape(s) {}
  Owned(Shape s, std::vector<T> v) : values(std::move(v)), shape(s) {}
  [[nodiscard]] TensorView view() { return {values.data(), shape, dtype_of<T>::value}; }
  T& operator[](std::size_t i) { return values[i]; }
};
using F64 = Owned<double>;
using I32 = Owned<std::int32_t>;

class Reference : public ::testing::Test {
 protected:
  F64 random(Shape shape) {
    F64 t(shape);
    for (double& e : t.values) e = normal_(engine_);
    return t;
  }

  /// Compares `gradient` (of `x`) of the scalar sum(dy * forward(x)) with central differences.
  void expect_gradient(F64& x, const F64& gradient, const F64& dy, const std::function<F64()>& forward, const char* what) {
    const auto loss = [&] {
      const F64 y = forward();
      double sum = 0;
      for (std::size_t i = 0; i < y.values.size(); ++i) sum += y.values[i] * dy.values[i];
      return sum;
    };
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      constexpr double kStep = 1e-5;
      const double old = x[i];
      x[i] = old + kStep;
      const double above = loss();
      x[i] = old - kStep;
      const double below = loss();
      x[i] = old;
      EXPECT_NEAR(gradient.values[i], (above - below) / (2 * kStep), 1e-7) << what << " element " << i;
    }
  }

  std::unique_ptr<Pool> pool_ = make_cpu_pool();
  std::unique_ptr<Stream> stream_ = make_cpu_stream("compute", StreamMode::inlined);
  std::unique_ptr<Kernels> kernels_ = make_reference_kernels(*pool_);
  std::mt19937 engine_{1};
  std::normal_distribution<double> normal_;
};

TEST_F(Reference, LinearLiteral) {
  F64 x({2, 2}, {1, 2, 3, 4}), w({3, 2}, {1, 0, 0, 1, 10, 100}), bias({3}, {0.5, 0, -1}), y({2, 3});
  kernels_->linear(*stream_, x.view(), w.view(), bias.view(), y.view());
  EXPECT_EQ(y.values, (std::vector<double>{1.5, 2, 209, 3.5, 4, 429}));
  kernels_->linear(*stream_, x.view(), w.view(), {}, y.view());
  EXPECT_EQ(y.values, (std::vector<double>{1, 2, 210, 3, 4, 430}));
}

TEST_F(Reference, LinearBackward) {
  F64 x = random({2, 3, 4}), w = random({5, 4}), bias = random({5}), dy = random({2, 3, 5});
  const auto forward = [&] {
    F64 y({2, 3, 5});
    kernels_->linear(*stream_, x.view(), w.view(), bias.view(), y.view());
    return y;
  };
  F64 dx({2, 3, 4}), dw({5, 4}), dbias({5});
  kernels_->linear_backward_input(*stream_, dy.view(), w.view(), dx.view(), Write::overwrite);
  kernels_->linear_backward_params(*stream_, dy.view(), x.view(), dw.view(), dbias.view(), Write::overwrite);
  expect_gradient(x, dx, dy, forward, "x");
  expect_gradient(w, dw, dy, forward, "w");
  expect_gradient(bias, dbias, dy, forward, "bias");
  const F64 once = dw;
  kernels_->linear_backward_params(*stream_, dy.view(), x.view(), dw.view(), {}, Write::accumulate);
  for (std::size_t i = 0; i < dw.values.size(); ++i) EXPECT_DOUBLE_EQ(dw[i], 2 * once.values[i]);
}

TEST_F(Reference, Gelu) {
  F64 one({3}, {0, 1, -1}), y({3});
  kernels_->activation(*stream_, Activation::gelu, one.view(), y.view());
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 0.841191990608, 1e-12);  // 1/2 (1 + tanh(0.8340...))
  EXPECT_NEAR(y[2], -0.158808009392, 1e-12);
  F64 x = random({50}), dy = random({50}), dx({50});
  kernels_->activation_backward(*stream_, Activation::gelu, x.view(), dy.view(), dx.view());
  expect_gradient(
      x, dx, dy,
      [&] {
        F64 out({50});
        kernels_->activation(*stream_, Activation::gelu, x.view(), out.view());
        return out;
      },
      "x");
}

TEST_F(Reference, OtherActivations) {
  const struct {
    Activation f;
    std::vector<double> expected;  // of -1, 0, 2
  } cases[] = {{Activation::relu, {0, 0, 2}},
               {Activation::silu, {-0.268941421370, 0, 1.761594155956}},
               {Activation::tanh, {-0.761594155956, 0, 0.964027580076}}};
  for (const auto& each : cases) {
    F64 in({3}, {-1, 0, 2}), out({3});
    kernels_->activation(*stream_, each.f, in.view(), out.view());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(out[i], each.expected[i], 1e-12);
    F64 x = random({50}), dy = random({50}), dx({50});
    kernels_->activation_backward(*stream_, each.f, x.view(), dy.view(), dx.view());
    expect_gradient(
        x, dx, dy,
        [&] {
          F64 y({50});
          kernels_->activation(*stream_, each.f, x.view(), y.view());
          return y;
        },
        "x");
  }
}

TEST_F(Reference, ElementLosses) {
  F64 in({2}, {0, 2}), goal({2}, {1, 0.25}), loss({1});
  kernels_->element_loss(*stream_, ElementLoss::squared_error, in.view(), goal.view(), loss.view());
  EXPECT_DOUBLE_EQ(loss[0], (1 + 1.75 * 1.75) / 2);
  kernels_->element_loss(*stream_, ElementLoss::binary_cross_entropy, in.view(), goal.view(), loss.view());
  // -log(1/2), and with p = 0.880797: -0.25 log(p) - 0.75 log(1 - p)
  EXPECT_NEAR(loss[0], (0.693147180560 + 1.626928011043) / 2, 1e-12);
  for (const ElementLoss f : {ElementLoss::squared_error, ElementLoss::binary_cross_entropy}) {
    F64 x = random({3, 5}), targets = random({3, 5}), dloss({1}, {1.5}), dx({3, 5});
    kernels_->element_loss_backward(*stream_, f, x.view(), targets.view(), dloss.view(), dx.view());
    expect_gradient(
        x, dx, dloss,
        [&] {
          F64 out({1});
          kernels_->element_loss(*stream_, f, x.view(), targets.view(), out.view());
          return out;
        },
        "x");
  }
}

TEST_F(Reference, CrossEntropy) {
  constexpr std::int32_t kIgnored = -100;
  F64 logits({3, 3}, {0, 0, 0, 1, 2, 3, 5, 5, 5}), loss({1});
  I32 targets({3}, {1, 2, kIgnored});
  kernels_->cross_entropy(*stream_, logits.view(), targets.view(), kIgnored, loss.view());
  EXPECT_NEAR(loss[0], (1.098612288668 + 0.407605964444) / 2, 1e-12);  // log 3, and log(1 + 1/e + 1/e^2)
  F64 x = random({3, 3}), dloss({1}, {1.5}), dx({3, 3});
  kernels_->cross_entropy_backward(*stream_, x.view(), targets.view(), kIgnored, dloss.view(), dx.view());
  expect_gradient(
      x, dx, dloss,
      [&] {
        F64 out({1});
        kernels_->cross_entropy(*stream_, x.view(), targets.view(), kIgnored, out.view());
        return out;
      },
      "logits");
}

TEST_F(Reference, Swiglu) {
  F64 one({3}, {0, 1, -2}), two({3}, {5, 2, 1}), out({3});
  kernels_->swiglu(*stream_, one.view(), two.view(), out.view());
  EXPECT_EQ(out[0], 0);
  EXPECT_NEAR(out[1], 2 * 0.731058578630, 1e-12);
  EXPECT_NEAR(out[2], -2 * 0.119202922022, 1e-12);
  F64 gate = random({50}), up = random({50}), dy = random({50}), dgate({50}), dup({50});
  kernels_->swiglu_backward(*stream_, gate.view(), up.view(), dy.view(), dgate.view(), dup.view());
  const auto forward = [&] {
    F64 y({50});
    kernels_->swiglu(*stream_, gate.view(), up.view(), y.view());
    return y;
  };
  expect_gradient(gate, dgate, dy, forward, "gate");
  expect_gradient(up, dup, dy, forward, "up");
}

TEST_F(Reference, RmsNorm) {
  F64 x({1, 4}, {1, 1, 1, 3}), gamma({4}, {1, 1, -1, 2}), y({1, 4}), rstd({1});
  kernels_->rms_norm(*stream_, x.view(), gamma.view(), 1, y.view(), rstd.view());
  EXPECT_DOUBLE_EQ(rstd[0], 0.5);  // mean square 12/4 = 3, + 1
  EXPECT_EQ(y.values, (std::vector<double>{0.5, 0.5, -0.5, 3}));

  F64 rows = random({3, 7}), g = random({7}), dy = random({3, 7}), r({3});
  const auto forward = [&] {
    F64 out({3, 7});
    kernels_->rms_norm(*stream_, rows.view(), g.view(), 1e-3, out.view(), r.view());
    return out;
  };
  static_cast<void>(forward());
  F64 dx({3, 7}), dgamma({7});
  kernels_->rms_norm_backward(*stream_, dy.view(), rows.view(), g.view(), r.view(), dx.view(), Write::overwrite, dgamma.view(),
                              Write::overwrite);
  expect_gradient(rows, dx, dy, forward, "x");
  expect_gradient(g, dgamma, dy, forward, "gamma");
}

TEST_F(Reference, RotaryTurnsThePairsOfEachHead) {
  // One frequency of pi/2 a position, heads of 4: the pairs are (0, 2) and (1, 3).
  const std::vector<double> quarter{M_PI / 2, M_PI};
  F64 x({1, 3, 4}, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}), y({1, 3, 4});
  kernels_->rotary(*stream_, x.view(), quarter, Turn::forward, y.view());
  const std::vector<double> expected{1, 2, 3, 4, -3, -2, 1, -4, -1, 2, -3, 4};
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(y[i], expected[i], 1e-12) << i;
  kernels_->rotary(*stream_, y.view(), quarter, Turn::back, y.view());
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(y[i], x[i], 1e-12) << i;

  const std::vector<double> inv_freq{1, 0.3, 0.01};
  F64 in = random({2, 4, 12}), dy = random({2, 4, 12}), dx({2, 4, 12});
  kernels_->rotary(*stream_, dy.view(), inv_freq, Turn::back, dx.view());
  expect_gradient(
      in, dx, dy,
      [&] {
        F64 out({2, 4, 12});
        kernels_->rotary(*stream_, in.view(), inv_freq, Turn::forward, out.view());
        return out;
      },
      "x");
}

TEST_F(Reference, LayerNorm) {
  F64 x({1, 4}, {1, 2, 3, 6}), gamma({4}, {1, 1, 1, 2}), beta({4}, {0, 0, 0, 1}), y({1, 4}), mean({1}), rstd({1});
  kernels_->layer_norm(*stream_, x.view(), gamma.view(), beta.view(), 0.5, y.view(), mean.view(), rstd.view());
  EXPECT_DOUBLE_EQ(mean[0], 3);
  EXPECT_DOUBLE_EQ(rstd[0], 0.5);  // variance 14/4 = 3.5, + 0.5
  EXPECT_EQ(y.values, (std::vector<double>{-1, -0.5, 0, 4}));

  F64 rows = random({3, 7}), g = random({7}), b = random({7}), dy = random({3, 7}), m({3}), r({3});
  const auto forward = [&] {
    F64 out({3, 7});
    kernels_->layer_norm(*stream_, rows.view(), g.view(), b.view(), 1e-3, out.view(), m.view(), r.view());
    return out;
  };
  static_cast<void>(forward());
  F64 dx({3, 7}), dgamma({7}), dbeta({7});
  kernels_->layer_norm_backward(*stream_, dy.view(), rows.view(), g.view(), m.view(), r.view(), dx.view(), Write::overwrite, dgamma.view(),
                                dbeta.view(), Write::overwrite);
  expect_gradient(rows, dx, dy, forward, "x");
  expect_gradient(g, dgamma, dy, forward, "gamma");
  expect_gradient(b, dbeta, dy, forward, "beta");
}

TEST_F(Reference, Embedding) {
  I32 ids({2, 3}, {4, 0, 4, 1, 1, 4});
  F64 tokens = random({5, 2}), positions = random({6, 2}), dy = random({2, 3, 2});
  const auto forward = [&] {
    F64 y({2, 3, 2});
    kernels_->embedding(*stream_, ids.view(), tokens.view(), positions.view(), y.view());
    return y;
  };
  EXPECT_EQ(forward()[4], tokens[8] + positions[4]);
  F64 dtokens({5, 2}, 9.0), dpositions({6, 2}, 9.0);
  kernels_->embedding_backward(*stream_, dy.view(), ids.view(), dtokens.view(), Write::overwrite, dpositions.view(), Write::overwrite);
  expect_gradient(tokens, dtokens, dy, forward, "tokens");
  expect_gradient(positions, dpositions, dy, forward, "positions");
}

TEST_F(Reference, AttentionIsCausalAndItsGradientRight) {
  const AttentionShape shape{.batch = 2, .seq_len = 4, .heads = 2, .head_dim = 3};
  F64 qkv = random({2, 4, 18}), dy = random({2, 4, 6}), lse({2, 2, 4}), y({2, 4, 6});
  const auto forward = [&] {
    F64 out({2, 4, 6});
    kernels_->attention(*stream_, shape, qkv.view(), out.view(), {});
    return out;
  };
  kernels_->attention(*stream_, shape, qkv.view(), y.view(), lse.view());
  for (std::size_t c = 0; c < 6; ++c) EXPECT_DOUBLE_EQ(y[c], qkv[12 + c]) << "the first token sees itself only";
  double dot = 0;
  for (std::size_t d = 0; d < 3; ++d) dot += qkv[d] * qkv[6 + d];
  EXPECT_NEAR(lse[0], dot / std::sqrt(3.0), 1e-12);
  F64 later = qkv;
  std::swap(later, qkv);
  for (std::size_t i = 3 * 18; i < 4 * 18; ++i) qkv[i] += 1;  // the last token of the first sequence
  F64 changed = forward();
  std::swap(later, qkv);
  for (std::size_t i = 0; i < 3 * 6; ++i) EXPECT_EQ(changed[i], y[i]) << "a token saw a later one";
  EXPECT_NE(changed[3 * 6], y[3 * 6]);

  F64 dqkv({2, 4, 18}, 9.0);
  kernels_->attention_backward(*stream_, shape, dy.view(), qkv.view(), y.view(), lse.view(), dqkv.view());
  expect_gradient(qkv, dqkv, dy, forward, "qkv");
}

TEST_F(Reference, AttentionOfGroupedHeads) {
  const AttentionShape grouped{.batch = 2, .seq_len = 4, .heads = 4, .head_dim = 3, .kv_heads = 2};
  const AttentionShape plain{.batch = 2, .seq_len = 4, .heads = 4, .head_dim = 3};
  F64 q = random({2, 4, 12}), k = random({2, 4, 6}), v = random({2, 4, 6}), dy = random({2, 4, 12});
  const auto repeated = [](const F64& x) {  // heads 0 and 1 see the first, heads 2 and 3 the second
    F64 out({2, 4, 12});
    for (std::size_t row = 0; row < 8; ++row) {
      for (std::size_t c = 0; c < 12; ++c) out[row * 12 + c] = x.values[row * 6 + c / 6 * 3 + c % 3];
    }
    return out;
  };
  const auto forward = [&] {
    F64 out({2, 4, 12});
    kernels_->attention(*stream_, grouped, ConstQkv{q.view(), k.view(), v.view()}, out.view(), {});
    return out;
  };
  F64 y({2, 4, 12}), lse({2, 4, 4}), k_repeated = repeated(k), v_repeated = repeated(v), expected({2, 4, 12});
  kernels_->attention(*stream_, grouped, ConstQkv{q.view(), k.view(), v.view()}, y.view(), lse.view());
  kernels_->attention(*stream_, plain, ConstQkv{q.view(), k_repeated.view(), v_repeated.view()}, expected.view(), {});
  EXPECT_EQ(y.values, expected.values);

  F64 dq({2, 4, 12}, 9.0), dk({2, 4, 6}, 9.0), dv({2, 4, 6}, 9.0);
  kernels_->attention_backward(*stream_, grouped, dy.view(), ConstQkv{q.view(), k.view(), v.view()}, y.view(), lse.view(),
                               Qkv{dq.view(), dk.view(), dv.view()});
  expect_gradient(q, dq, dy, forward, "q");
  expect_gradient(k, dk, dy, forward, "k");
  expect_gradient(v, dv, dy, forward, "v");
}

TEST_F(Reference, HeadLoss) {
  F64 hidden({2, 1}, {1, 2}), w({2, 1}, {0, std::log(3.0)}), loss({1});
  I32 targets({2}, {1, -1});
  kernels_->head_loss(*stream_, hidden.view(), w.view(), targets.view(), 2, loss.view());
  EXPECT_NEAR(loss[0], -2 * std::log(0.75), 1e-12);  // logits 0 and log 3; the second row is ignored

  F64 h = random({4, 3}), head = random({5, 3}), dloss({1}, 1.5), dh({4, 3}), dw({5, 3});
  I32 t({4}, {0, 4, -1, 2});
  const auto forward = [&] {
    F64 out({1});
    kernels_->head_loss(*stream_, h.view(), head.view(), t.view(), 0.25, out.view());
    return out;
  };
  kernels_->head_loss_backward(*stream_, h.view(), head.view(), t.view(), 0.25, dloss.view(), loss.view(), dh.view(), dw.view(),
                               Write::overwrite);
  EXPECT_DOUBLE_EQ(loss[0], forward()[0]);
  expect_gradient(h, dh, dloss, forward, "hidden");
  expect_gradient(head, dw, dloss, forward, "w");
}

TEST_F(Reference, ElementwiseAndNorms) {
  F64 a({3}, {1, -2, 3}), b({3}, {10, 20, 30}), y({3});
  kernels_->add(*stream_, a.view(), b.view(), y.view());
  EXPECT_EQ(y.values, (std::vector<double>{11, 18, 33}));
  kernels_->scale(*stream_, a.view(), 0.5, y.view(), Write::accumulate);
  EXPECT_EQ(y.values, (std::vector<double>{11.5, 17, 34.5}));
  F64 two({1}, 2.0), sum({1}), norm({1}), coefficient({1});
  kernels_->scale_by(*stream_, y.view(), two.view());
  EXPECT_EQ(y.values, (std::vector<double>{23, 34, 69}));
  kernels_->power_sum(*stream_, a.view(), 2, sum.view(), Write::overwrite);
  kernels_->power_sum(*stream_, b.view(), 1, sum.view(), Write::accumulate);
  EXPECT_EQ(sum[0], 14 + 60);
  kernels_->power_sum(*stream_, a.view(), kInfNorm, sum.view(), Write::overwrite);
  EXPECT_EQ(sum[0], 3);
  kernels_->power_sum(*stream_, b.view(), kInfNorm, sum.view(), Write::accumulate);
  EXPECT_EQ(sum[0], 30);
  sum[0] = 16;
  kernels_->clip_coefficient(*stream_, sum.view(), 2, 1.0, norm.view(), coefficient.view());
  EXPECT_EQ(norm[0], 4);
  EXPECT_DOUBLE_EQ(coefficient[0], 1 / (4 + 1e-6));
  kernels_->clip_coefficient(*stream_, sum.view(), 2, 5.0, norm.view(), coefficient.view());
  EXPECT_EQ(coefficient[0], 1);
  kernels_->clip_coefficient(*stream_, sum.view(), kInfNorm, INFINITY, norm.view(), coefficient.view());
  EXPECT_EQ(norm[0], 16);
  EXPECT_EQ(coefficient[0], 1);
  Owned<float> narrow({3});
  kernels_->copy(*stream_, a.view(), narrow.view());
  EXPECT_EQ(narrow.values, (std::vector<float>{1, -2, 3}));
  I32 integers({2});
  kernels_->fill(*stream_, integers.view(), -3);
  EXPECT_EQ(integers.values, (std::vector<std::int32_t>{-3, -3}));
}

TEST_F(Reference, RandomNumbersComeFromTheKey) {
  const RandomKey key{.seed = 1, .step = 2, .name_hash = 3};
  F64 x({2, 5}, 1.0), y({2, 5});
  const std::int64_t sequences[2] = {7, 9};
  kernels_->dropout(*stream_, x.view(), 0.5, key, sequences, y.view());
  for (std::size_t b = 0; b < 2; ++b) {
    RandomKey row = key;
    row.sequence = b == 0 ? 7 : 9;
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(y[b * 5 + i], random_word(row, i) >= 0x80000000U ? 2 : 0);
  }
  Owned<float> normals({6});
  kernels_->fill_normal(*stream_, normals.view(), key, 10, 0.02);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(normals[i], 0.02F * random_normal(key, 10 + i));
}

TEST_F(Reference, AdamWByHand) {
  F64 p({1}, 1.0), g({1}, 4.0), m({1}), v({1}), half({1}, 0.5), skip({1});
  AdamWArgs args{p.view(), g.view(), m.view(), v.view()};
  args.lr = 0.1, args.beta1 = 0.5, args.beta2 = 0.75, args.eps = 0, args.weight_decay = 0.2;
  args.grad_scale = half.view(), args.skip = skip.view();
  kernels_->adamw(*stream_, args);  // g = 2, m = 1, v = 1; both bias corrections give 2 and 4: update 2 / 2
  EXPECT_DOUBLE_EQ(m[0], 1);
  EXPECT_DOUBLE_EQ(v[0], 1);
  EXPECT_DOUBLE_EQ(p[0], 1 * (1 - 0.02) - 0.1);
  skip[0] = 1;
  kernels_->adamw(*stream_, args);
  EXPECT_DOUBLE_EQ(m[0], 1);
  EXPECT_DOUBLE_EQ(p[0], 0.88);
}

TEST_F(Reference, SgdByHand) {
  F64 p({1}, 1.0), g({1}, 2.0), buffer({1}, 8.0);
  SgdArgs args{p.view(), g.view(), buffer.view()};
  args.lr = 0.5, args.momentum = 0.5, args.dampening = 0.25, args.weight_decay = 2;
  kernels_->sgd(*stream_, args);  // d = 4; buffer = 4 + 0.75 * 4 = 7
  EXPECT_DOUBLE_EQ(buffer[0], 7);
  EXPECT_DOUBLE_EQ(p[0], 1 - 3.5);
  args.first_step = true, args.nesterov = true;
  kernels_->sgd(*stream_, args);  // d = 2 - 5 = -3; buffer = -3; update = -3 - 1.5
  EXPECT_DOUBLE_EQ(buffer[0], -3);
  EXPECT_DOUBLE_EQ(p[0], -2.5 + 2.25);
}

}  // namespace
}  // namespace mica
