// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {
constexpr std::int32_t kIgnored = -1;

void check_shapes(const ConstTensorView& hidden, const ConstTensorView& w, const ConstTensorView& targets) {
  expect_numel(w, w.shape[0] * hidden.shape.back(), "head_loss: w [V,C]");
  expect_numel(targets, hidden.shape.rows(), "head_loss: targets [M]");
}

/// Softmax of one row of logits in place; returns -log p[target].
double softmax_loss(Values& row, std::int32_t target) {
  invariant(target >= 0 && static_cast<std::size_t>(target) < row.size(), "head_loss: every target is a class or -1");
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const double e : row) sum += std::exp(e - max);
  const double loss = max + std::log(sum) - row[static_cast<std::size_t>(target)];
  for (double& e : row) e = std::exp(e - max) / sum;
  return loss;
}

Values logits_of(const Values& hidden, std::int64_t row, const Values& w, std::int64_t cols) {
  Values out(w.size() / static_cast<std::size_t>(cols));
  for (std::size_t v = 0; v < out.size(); ++v) {
    for (std::int64_t j = 0; j < cols; ++j) {
      out[v] += hidden[at(row, cols, j)] * w[at(static_cast<std::int64_t>(v), cols, j)];
    }
  }
  return out;
}
}  // namespace

void ReferenceKernels::head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                                 TensorView loss) {
  check_shapes(hidden, w, targets);
  s.submit("head_loss", {reads(hidden), reads(w), reads(targets), writes(loss)}, [=] {
    const Values hs = values(hidden), ws = values(w);
    const auto* target = targets.as<std::int32_t>();
    double sum = 0;
    for (std::int64_t i = 0; i < hidden.shape.rows(); ++i) {
      if (target[i] == kIgnored) continue;
      Values row = logits_of(hs, i, ws, hidden.shape.back());
      sum += softmax_loss(row, target[i]);
    }
    store(loss, {scale * sum});
  });
}

void ReferenceKernels::head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                                          ConstTensorView dloss, TensorView loss, TensorView dhidden, TensorView dw, Write dw_mode,
                                          RowTurns* turns) {
  check_shapes(hidden, w, targets);
  const TensorView own_dw = turns ? TensorView() : dw;
  const auto all_dw = std::make_shared<Values>();
  s.submit("head_loss_backward", {reads(hidden), reads(w), reads(targets), reads(dloss), writes(loss), writes(dhidden), writes(own_dw)},
           [=] {
             const Values hs = values(hidden), ws = values(w);
             const auto* target = targets.as<std::int32_t>();
             const std::int64_t cols = hidden.shape.back();
             const double factor = scale * scalar(dloss);
             Values dhs(hs.size()), dws(ws.size());
             double sum = 0;
             for (std::int64_t i = 0; i < hidden.shape.rows(); ++i) {
               if (target[i] == kIgnored) continue;
               Values row = logits_of(hs, i, ws, cols);
               sum += softmax_loss(row, target[i]);
               row[static_cast<std::size_t>(target[i])] -= 1;
               for (std::size_t v = 0; v < row.size(); ++v) {
                 const auto class_row = static_cast<std::int64_t>(v);
                 for (std::int64_t j = 0; j < cols; ++j) {
                   dhs[at(i, cols, j)] += factor * row[v] * ws[at(class_row, cols, j)];
                   dws[at(class_row, cols, j)] += factor * row[v] * hs[at(i, cols, j)];
                 }
               }
             }
             store(loss, {scale * sum});
             store(dhidden, dhs);
             store(own_dw, dws, dw_mode);
             *all_dw = std::move(dws);
           });
  if (turns) store_in_turns(s, "head_loss_backward", dw, all_dw, dw_mode, *turns);
}

}  // namespace mica::reference
