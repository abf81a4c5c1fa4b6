// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {

double probability(double x) { return 1 / (1 + std::exp(-x)); }

/// The loss of one output by its definition; far from 0 the logarithms are replaced by their limits.
double loss_at(ElementLoss f, double x, double target) {
  if (f == ElementLoss::squared_error) return std::pow(x - target, 2);
  const double log_p = x < -30 ? x : -std::log1p(std::exp(-x));     // log(1 / (1 + e^-x))
  const double log_not_p = x > 30 ? -x : -std::log1p(std::exp(x));  // log(1 - p)
  return -target * log_p - (1 - target) * log_not_p;
}

double derivative_at(ElementLoss f, double x, double target) {
  return f == ElementLoss::squared_error ? 2 * (x - target) : probability(x) - target;
}

/// Softmax of one row.
Values softmax(const Values& logits, std::int64_t row, std::int64_t classes) {
  const auto begin = logits.begin() + row * classes;
  Values p(begin, begin + classes);
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (const double e : p) sum += std::exp(e - max);
  for (double& e : p) e = std::exp(e - max) / sum;
  return p;
}

/// The class of a row; negative if the row is ignored.
std::int64_t class_of(const ConstTensorView& targets, std::int64_t row, std::int32_t ignored, std::int64_t classes) {
  const std::int32_t target = targets.as<std::int32_t>()[row];
  if (target == ignored) return -1;
  invariant(target >= 0 && target < classes, "cross_entropy: every target is a class or ignored");
  return target;
}

}  // namespace

void ReferenceKernels::element_loss(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, TensorView loss) {
  expect_numel(targets, x.numel(), "element_loss: targets like x");
  s.submit("element_loss", {reads(x), reads(targets), writes(loss)}, [=] {
    const Values xs = values(x), ts = values(targets);
    double sum = 0;
    for (std::size_t i = 0; i < xs.size(); ++i) sum += loss_at(f, xs[i], ts[i]);
    store(loss, {sum / static_cast<double>(xs.size())});
  });
}

void ReferenceKernels::element_loss_backward(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, ConstTensorView dloss,
                                             TensorView dx) {
  expect_numel(targets, x.numel(), "element_loss_backward: targets like x");
  s.submit("element_loss_backward", {reads(x), reads(targets), reads(dloss), writes(dx)}, [=] {
    const Values ts = values(targets);
    Values g = values(x);
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = scalar(dloss) * derivative_at(f, g[i], ts[i]) / static_cast<double>(g.size());
    }
    store(dx, g);
  });
}

void ReferenceKernels::cross_entropy(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored, TensorView loss) {
  expect_numel(targets, logits.shape.rows(), "cross_entropy: targets [M]");
  s.submit("cross_entropy", {reads(logits), reads(targets), writes(loss)}, [=] {
    const std::int64_t classes = logits.shape.back();
    const Values xs = values(logits);
    double sum = 0, count = 0;
    for (std::int64_t row = 0; row < logits.shape.rows(); ++row) {
      const std::int64_t target = class_of(targets, row, ignored, classes);
      if (target < 0) continue;
      const auto begin = xs.begin() + row * classes;
      const double max = *std::max_element(begin, begin + classes);
      double exponentials = 0;
      for (auto x = begin; x != begin + classes; ++x) exponentials += std::exp(*x - max);
      sum += max + std::log(exponentials) - begin[target];
      count += 1;
    }
    store(loss, {sum / count});
  });
}

void ReferenceKernels::cross_entropy_backward(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored,
                                              ConstTensorView dloss, TensorView dlogits) {
  expect_numel(targets, logits.shape.rows(), "cross_entropy_backward: targets [M]");
  s.submit("cross_entropy_backward", {reads(logits), reads(targets), reads(dloss), writes(dlogits)}, [=] {
    const std::int64_t classes = logits.shape.back(), rows = logits.shape.rows();
    const Values xs = values(logits);
    double count = 0;
    for (std::int64_t row = 0; row < rows; ++row) count += class_of(targets, row, ignored, classes) >= 0 ? 1 : 0;
    Values gradient(xs.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t target = class_of(targets, row, ignored, classes);
      if (target < 0) continue;
      const Values p = softmax(xs, row, classes);
      for (std::int64_t c = 0; c < classes; ++c) {
        const double hit = c == target ? 1 : 0;
        gradient[at(row, classes, c)] = scalar(dloss) * (p[static_cast<std::size_t>(c)] - hit) / count;
      }
    }
    store(dlogits, gradient);
  });
}

}  // namespace mica::reference
