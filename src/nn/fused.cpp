// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/fused.hpp"

#include "mica/nn/activation.hpp"
#include "mica/nn/embedding.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/norm.hpp"

namespace mica::nn {

std::optional<Tensors> fused_forward(Context& context, Module& a, Module& b, const Tensors& xs, Record* of_a, Record* of_b) {
  if (a.runs_alone() || b.runs_alone()) return {};
  std::optional<Tensors> ys;
  if (auto* linear = dynamic_cast<Linear*>(&a); linear && dynamic_cast<Gelu*>(&b)) {
    ys = linear->forward_with_gelu(context, xs, of_a, of_b);
  } else if (auto* tokens = dynamic_cast<Embedding*>(&a)) {
    auto* positions = dynamic_cast<PositionEmbedding*>(&b);
    if (positions) ys = tokens->forward_with_positions(context, xs, *positions, of_a, of_b);
  }
  if (ys && of_a) of_a->note_inputs(xs);
  return ys;
}

std::optional<Tensors> fused_backward(Context& context, Module& a, Module& b, Record& of_a, Record& of_b, const Tensors& dys) {
  if (a.runs_alone() || b.runs_alone() || !of_b.needs_dx(0)) return {};
  auto* linear = dynamic_cast<Linear*>(&b);
  if (!linear || !dynamic_cast<Gelu*>(&a)) return {};
  const Tensor* input_of_gelu = a.saved_input(of_a);
  if (!input_of_gelu || !*input_of_gelu) return {};  // nothing was kept, or it has not been recomputed yet
  Tensors dxs = linear->backward_with_gelu(context, of_a, of_b, dys);
  if (!of_b.is_kept()) {
    of_b.clear();
    of_a.clear();
  }
  return dxs;
}

std::optional<Tensors> norm_of_sum(Context& context, Module& norm, const Tensor& x, const Tensor& branch, const Tensor& sum,
                                   Record* record) {
  auto* layer = dynamic_cast<Norm*>(&norm);
  if (!layer || norm.runs_alone()) return {};
  Tensors ys = layer->normalise(context, sum, record, &x, &branch);
  if (record) record->note_inputs({sum});
  return ys;
}

}  // namespace mica::nn
