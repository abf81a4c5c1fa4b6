// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/fused.hpp"

#include <ranges>

#include "mica/nn/activation.hpp"
#include "mica/nn/dropout.hpp"
#include "mica/nn/embedding.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/norm.hpp"

namespace mica::nn {
namespace {

/// Index of the last module that does more than return its input, or is a unit, whose hooks may; their number if there is none.
std::size_t last_at_work(const Context& context, const auto& modules) {
  for (std::size_t i = modules.size(); i-- > 0;) {
    const auto* dropout = dynamic_cast<const Dropout*>(modules[i]);
    if (!dropout || !dropout->passes_through(context) || dropout->hooks()) return i;
  }
  return modules.size();
}

/// The product whose output `module` now returns, if it can add x; else null.
const Linear* ending_product(const Context& context, const Module& module, const Tensor& x) {
  if (module.runs_alone()) return nullptr;
  if (const auto* linear = dynamic_cast<const Linear*>(&module)) return linear->can_add(x) ? linear : nullptr;
  if (!module.ends_in_last_child()) return nullptr;
  const auto children = module.children() | std::views::transform(&Module::Child::module);
  const std::size_t last = last_at_work(context, children);
  return last < children.size() ? ending_product(context, *children[last], x) : nullptr;
}

}  // namespace

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

std::size_t adding_module(const Context& context, std::span<Module* const> chain, const Tensor& x) {
  if (!context.kernels.adds_in_products()) return chain.size();
  const std::size_t last = last_at_work(context, chain);
  return last < chain.size() && ending_product(context, *chain[last], x) ? last : chain.size();
}

Tensors forward_onto(Context& context, Module& module, const Tensor& x, Tensors xs, Record* record) {
  const ScopedValue offered(context.residual_sum, ResidualSum{.product = ending_product(context, module, x), .x = &x});
  Tensors ys = module.forward(context, std::move(xs), record);
  invariant(!context.residual_sum.x, "the product that ends a residual's branch makes the sum");
  return ys;
}

}  // namespace mica::nn
