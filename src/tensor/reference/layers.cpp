// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {
const double kGeluSlope = std::sqrt(2 / std::numbers::pi);
constexpr double kGeluCubic = 0.044715;

double gelu_at(double x) { return 0.5 * x * (1 + std::tanh(kGeluSlope * (x + kGeluCubic * x * x * x))); }

double gelu_derivative_at(double x) {
  const double t = std::tanh(kGeluSlope * (x + kGeluCubic * x * x * x));
  const double inner = kGeluSlope * (1 + 3 * kGeluCubic * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double activation_at(Activation f, double x) {
  switch (f) {
    case Activation::gelu:
      return gelu_at(x);
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::tanh:
      return std::tanh(x);
  }
  return 0;
}

double derivative_at(Activation f, double x) {
  switch (f) {
    case Activation::gelu:
      return gelu_derivative_at(x);
    case Activation::relu:
      return x > 0 ? 1 : 0;
    case Activation::silu:
      return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    case Activation::tanh:
      return 1 / std::pow(std::cosh(x), 2);
  }
  return 0;
}
}  // namespace

void ReferenceKernels::linear_gelu(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView pre, TensorView y) {
  linear(s, x, w, bias, pre ? pre : y);
  activation(s, Activation::gelu, pre ? pre : y, y);
}

void ReferenceKernels::linear_gelu_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, ConstTensorView pre, TensorView dpre) {
  linear_backward_input(s, dy, w, dpre, Write::overwrite);
  activation_backward(s, Activation::gelu, pre, dpre, dpre);
}

void ReferenceKernels::add_layer_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma,
                                      ConstTensorView beta, double eps, TensorView y, TensorView mean, TensorView rstd) {
  add(s, a, b, sum);
  layer_norm(s, sum, gamma, beta, eps, y, mean, rstd);
}

void ReferenceKernels::add_rms_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma, double eps,
                                    TensorView y, TensorView rstd) {
  add(s, a, b, sum);
  rms_norm(s, sum, gamma, eps, y, rstd);
}

void ReferenceKernels::activation(Stream& s, Activation f, ConstTensorView x, TensorView y) {
  s.submit("activation", {reads(x), writes(y)}, [=] {
    Values v = values(x);
    for (double& e : v) e = activation_at(f, e);
    store(y, v);
  });
}

void ReferenceKernels::activation_backward(Stream& s, Activation f, ConstTensorView x, ConstTensorView dy, TensorView dx) {
  expect_numel(dy, x.numel(), "activation_backward: dy like x");
  s.submit("activation_backward", {reads(x), reads(dy), writes(dx)}, [=] {
    const Values xs = values(x);
    Values g = values(dy);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] *= derivative_at(f, xs[i]);
    store(dx, g);
  });
}

void ReferenceKernels::swiglu(Stream& s, ConstTensorView gate, ConstTensorView up, TensorView y) {
  expect_numel(up, gate.numel(), "swiglu: up like gate");
  s.submit("swiglu", {reads(gate), reads(up), writes(y)}, [=] {
    Values v = values(up);
    const Values gs = values(gate);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] *= gs[i] * sigmoid(gs[i]);
    store(y, v);
  });
}

void ReferenceKernels::swiglu_backward(Stream& s, ConstTensorView gate, ConstTensorView up, ConstTensorView dy, TensorView dgate,
                                       TensorView dup) {
  expect_numel(up, gate.numel(), "swiglu_backward: up like gate");
  expect_numel(dy, gate.numel(), "swiglu_backward: dy like gate");
  s.submit("swiglu_backward", {reads(gate), reads(up), reads(dy), writes(dgate), writes(dup)}, [=] {
    const Values gs = values(gate), us = values(up), dys = values(dy);
    Values dgs(gs.size()), dus(gs.size());
    for (std::size_t i = 0; i < gs.size(); ++i) {
      const double sigma = sigmoid(gs[i]);
      dgs[i] = dys[i] * us[i] * sigma * (1 + gs[i] * (1 - sigma));
      dus[i] = dys[i] * gs[i] * sigma;
    }
    store(dgate, dgs);
    store(dup, dus);
  });
}

void ReferenceKernels::layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps, TensorView y,
                                  TensorView mean, TensorView rstd) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect_numel(gamma, cols, "layer_norm: gamma [C]");
  expect_numel(beta, cols, "layer_norm: beta [C]");
  expect_numel(y, rows * cols, "layer_norm: y like x");
  expect_numel(mean, rows, "layer_norm: mean [M]");
  expect_numel(rstd, rows, "layer_norm: rstd [M]");
  s.submit("layer_norm", {reads(x), reads(gamma), reads(beta), writes(y), writes(mean), writes(rstd)}, [=] {
    const Values xs = values(x), gs = values(gamma), bs = values(beta);
    Values ys(xs.size()), means(static_cast<std::size_t>(rows)), rstds(static_cast<std::size_t>(rows));
    for (std::int64_t i = 0; i < rows; ++i) {
      double m = 0, v = 0;
      for (std::int64_t j = 0; j < cols; ++j) m += xs[at(i, cols, j)] / static_cast<double>(cols);
      for (std::int64_t j = 0; j < cols; ++j) v += std::pow(xs[at(i, cols, j)] - m, 2) / static_cast<double>(cols);
      const double r = 1 / std::sqrt(v + eps);
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto c = static_cast<std::size_t>(j);
        ys[at(i, cols, j)] = (xs[at(i, cols, j)] - m) * r * gs[c] + bs[c];
      }
      means[static_cast<std::size_t>(i)] = m;
      rstds[static_cast<std::size_t>(i)] = r;
    }
    store(y, ys);
    store(mean, means);
    store(rstd, rstds);
  });
}

void ReferenceKernels::layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                                           ConstTensorView rstd, TensorView dx, Write dx_mode, TensorView dgamma, TensorView dbeta,
                                           Write param_mode) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect_numel(dy, rows * cols, "layer_norm_backward: dy like x");
  expect_numel(mean, rows, "layer_norm_backward: mean [M]");
  expect_numel(rstd, rows, "layer_norm_backward: rstd [M]");
  s.submit("layer_norm_backward", {reads(dy), reads(x), reads(gamma), reads(mean), reads(rstd), writes(dx), writes(dgamma), writes(dbeta)},
           [=] {
             const Values dys = values(dy), xs = values(x), gs = values(gamma), ms = values(mean), rs = values(rstd);
             Values dxs(xs.size()), dgs(static_cast<std::size_t>(cols)), dbs(static_cast<std::size_t>(cols));
             for (std::int64_t i = 0; i < rows; ++i) {
               const double m = ms[static_cast<std::size_t>(i)], r = rs[static_cast<std::size_t>(i)];
               double mean_g = 0, mean_gx = 0;  // of g = gamma * dy, and of g * normalised x
               for (std::int64_t j = 0; j < cols; ++j) {
                 const auto c = static_cast<std::size_t>(j);
                 const double normalised = (xs[at(i, cols, j)] - m) * r;
                 const double d = dys[at(i, cols, j)];
                 mean_g += gs[c] * d / static_cast<double>(cols);
                 mean_gx += gs[c] * d * normalised / static_cast<double>(cols);
                 dgs[c] += d * normalised;
                 dbs[c] += d;
               }
               for (std::int64_t j = 0; j < cols; ++j) {
                 const double normalised = (xs[at(i, cols, j)] - m) * r;
                 const double g = gs[static_cast<std::size_t>(j)] * dys[at(i, cols, j)];
                 dxs[at(i, cols, j)] = r * (g - mean_g - normalised * mean_gx);
               }
             }
             store(dx, dxs, dx_mode);
             store(dgamma, dgs, param_mode);
             store(dbeta, dbs, param_mode);
           });
}

void ReferenceKernels::rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y, TensorView rstd) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect_numel(gamma, cols, "rms_norm: gamma [C]");
  expect_numel(y, rows * cols, "rms_norm: y like x");
  expect_numel(rstd, rows, "rms_norm: rstd [M]");
  s.submit("rms_norm", {reads(x), reads(gamma), writes(y), writes(rstd)}, [=] {
    const Values xs = values(x), gs = values(gamma);
    Values ys(xs.size()), rstds(static_cast<std::size_t>(rows));
    for (std::int64_t i = 0; i < rows; ++i) {
      double square = 0;
      for (std::int64_t j = 0; j < cols; ++j) square += std::pow(xs[at(i, cols, j)], 2) / static_cast<double>(cols);
      const double r = 1 / std::sqrt(square + eps);
      for (std::int64_t j = 0; j < cols; ++j) {
        ys[at(i, cols, j)] = xs[at(i, cols, j)] * r * gs[static_cast<std::size_t>(j)];
      }
      rstds[static_cast<std::size_t>(i)] = r;
    }
    store(y, ys);
    store(rstd, rstds);
  });
}

void ReferenceKernels::rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView rstd,
                                         TensorView dx, Write dx_mode, TensorView dgamma, Write param_mode) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect_numel(dy, rows * cols, "rms_norm_backward: dy like x");
  expect_numel(rstd, rows, "rms_norm_backward: rstd [M]");
  s.submit("rms_norm_backward", {reads(dy), reads(x), reads(gamma), reads(rstd), writes(dx), writes(dgamma)}, [=] {
    const Values dys = values(dy), xs = values(x), gs = values(gamma), rs = values(rstd);
    Values dxs(xs.size()), dgs(static_cast<std::size_t>(cols));
    for (std::int64_t i = 0; i < rows; ++i) {
      const double r = rs[static_cast<std::size_t>(i)];
      double mean = 0;  // of gamma * dy * normalised x
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto c = static_cast<std::size_t>(j);
        const double normalised = xs[at(i, cols, j)] * r;
        mean += gs[c] * dys[at(i, cols, j)] * normalised / static_cast<double>(cols);
        dgs[c] += dys[at(i, cols, j)] * normalised;
      }
      for (std::int64_t j = 0; j < cols; ++j) {
        const double g = gs[static_cast<std::size_t>(j)] * dys[at(i, cols, j)];
        dxs[at(i, cols, j)] = r * (g - xs[at(i, cols, j)] * r * mean);
      }
    }
    store(dx, dxs, dx_mode);
    store(dgamma, dgs, param_mode);
  });
}

}  // namespace mica::reference
