// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/chain.hpp"

#include <algorithm>
#include <utility>

#include "mica/nn/fused.hpp"

namespace mica::nn {
namespace {

struct ChainRecord final : RecordExtra {
  std::vector<bool> input_dropped;  // of each module: restored before its backward
  bool x_needs_grad = false;        // residual only
};

/// @param y  the elements that went from the producer to the consumer.
bool drop_input(const Context& context, const Module& producer, const Record& producer_record, const void* y, Module& consumer,
                Record& consumer_record) {
  if (context.recompute == Recompute::none || context.recomputing) return false;
  if (!producer.can_recompute_output(producer_record)) return false;
  Tensor* kept = consumer.saved_input(consumer_record);
  if (!kept || !*kept || kept->view().data != y) return false;  // a cast copy, or not needed at all
  *kept = Tensor();
  return true;
}

void restore_input(Context& context, std::span<Module* const> chain, Record& record, const ChainRecord& extra, std::size_t i) {
  if (!extra.input_dropped[i]) return;
  Tensor* kept = chain[i]->saved_input(record.child(i));
  if (*kept) return;
  restore_input(context, chain, record, extra, i - 1);  // the producer's own input may have been dropped as well
  *kept = chain[i - 1]->recompute_output(context, record.child(i - 1));
}

/// Drops a restored input again if the Record is kept for another backward.
void drop_again(std::span<Module* const> chain, Record& record, const ChainRecord& extra, std::size_t i) {
  if (record.is_kept() && extra.input_dropped[i]) *chain[i]->saved_input(record.child(i)) = Tensor();
}

ChainRecord& extra_of(Record& record) { return static_cast<ChainRecord&>(*record.extra); }

Record* child_of(Record* record, std::size_t i) { return record ? &record->child(i) : nullptr; }

/// Makes the Records of the modules.
void begin_chain(std::span<Module* const> chain, Record* record) {
  if (!record) return;
  for (std::size_t i = 0; i < chain.size(); ++i) static_cast<void>(record->add_child());
  auto extra = std::make_unique<ChainRecord>();
  extra->input_dropped.resize(chain.size());
  record->extra = std::move(extra);
}

/// The forward of a chain that has begun, from module `first` on; xs are that one's inputs.
Tensors run_chain(Context& context, std::span<Module* const> chain, std::size_t first, Tensors xs, Record* record) {
  for (std::size_t i = first; i < chain.size(); ++i) {
    Record* child = child_of(record, i);
    const void* input = xs.empty() ? nullptr : xs[0].view().data;
    std::optional<Tensors> of_both;
    if (i + 1 < chain.size()) {
      of_both = fused_forward(context, *chain[i], *chain[i + 1], xs, child, child_of(record, i + 1));
    }
    const bool is_fused = of_both.has_value();
    xs = is_fused ? *std::move(of_both) : chain[i]->forward(context, std::move(xs), child);
    if (child && i > 0) {
      extra_of(*record).input_dropped[i] = drop_input(context, *chain[i - 1], record->child(i - 1), input, *chain[i], *child);
    }
    if (is_fused) ++i;
  }
  return xs;
}

/// x = x + chain(x) for each. @param next_record  makes the Record of the next chain, or returns null
template <class NextRecord>
Tensor add_chains(Context& context, std::span<const std::span<Module* const>> chains, Tensor x, const NextRecord& next_record) {
  const auto begin = [&](std::span<Module* const> chain) {
    Record* record = next_record();
    begin_chain(chain, record);
    return record;
  };
  Record* record = begin(chains[0]);
  std::optional<Tensors> begun;  // outputs of the chain's first module, where the sum before it made them
  for (std::size_t c = 0; c < chains.size(); ++c) {
    const std::size_t first = begun ? 1 : 0;
    Tensors branch = run_chain(context, chains[c], first, begun ? *std::exchange(begun, std::nullopt) : list_of(x), record);
    require<Error>(branch.size() == 1 && branch[0].shape() == x.shape(),
                   "a residual branch must return one tensor of its input's shape {}, it returned {}", x.shape().to_string(),
                   branch.size() == 1 ? branch[0].shape().to_string() : std::to_string(branch.size()) + " tensors");
    if (record) extra_of(*record).x_needs_grad = x.needs_grad;
    Tensor sum = branch[0].is_unique() ? branch[0] : context.make(x.shape(), x.dtype());
    sum.needs_grad = record && (x.needs_grad || branch[0].needs_grad);
    if (c + 1 < chains.size()) {
      record = begin(chains[c + 1]);
      if (!chains[c + 1].empty()) {
        begun = norm_of_sum(context, *chains[c + 1][0], x, branch[0], sum, child_of(record, 0));
      }
    }
    if (!begun) context.kernels.add(context.compute, x, branch[0], sum);
    x = std::move(sum);
  }
  return x;
}

}  // namespace

Tensors chain_forward(Context& context, std::span<Module* const> chain, Tensors xs, Record* record) {
  begin_chain(chain, record);
  return run_chain(context, chain, 0, std::move(xs), record);
}

Tensors chain_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys) {
  const ChainRecord& extra = extra_of(record);
  if (!chain.empty()) record.child(0).dx_sum = record.dx_sum;
  for (std::size_t i = chain.size(); i-- > 0;) {
    // The handle of a tensor that is put back here must be the Record's alone, so that the layer can free it.
    const bool any = std::ranges::any_of(dys, [](const Tensor& dy) { return static_cast<bool>(dy); });
    if (any) restore_input(context, chain, record, extra, i);
    std::optional<Tensors> of_both;
    if (any && i > 0) {
      of_both = fused_backward(context, *chain[i - 1], *chain[i], record.child(i - 1), record.child(i), dys);
    }
    const bool is_fused = of_both.has_value();
    dys = is_fused ? *std::move(of_both) : chain[i]->backward(context, std::move(record.child(i)), std::move(dys));
    drop_again(chain, record, extra, i);
    if (is_fused) drop_again(chain, record, extra, --i);
  }
  if (!chain.empty()) record.child(0).dx_sum = nullptr;
  return dys;
}

Tensor* chain_saved_input(std::span<Module* const> chain, Record& record) {
  return chain.empty() ? nullptr : chain[0]->saved_input(record.child(0));
}

Tensor residual_forward(Context& context, std::span<Module* const> chain, const Tensor& x, Record* record) {
  return add_chains(context, {&chain, 1}, x, [record] { return record; });
}

Tensor residuals_forward(Context& context, std::initializer_list<std::span<Module* const>> chains, Tensor x, Record* record) {
  return add_chains(context, {chains.begin(), chains.size()}, std::move(x), [record] { return child_record(record); });
}

Tensor residual_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys) {
  if (!dys[0]) return {};
  if (!extra_of(record).x_needs_grad) {
    static_cast<void>(chain_backward(context, chain, record, std::move(dys)));
    return {};
  }
  GradientSum sum;
  if (dys[0].is_unique()) {
    sum.sum = dys[0];
  } else {
    sum.sum = context.make(dys[0].shape(), dys[0].dtype());
    context.kernels.copy(context.compute, dys[0], sum.sum);
  }
  record.dx_sum = &sum;
  const Tensors dxs = chain_backward(context, chain, record, std::move(dys));
  record.dx_sum = nullptr;
  if (!sum.used && dxs[0]) context.kernels.add(context.compute, sum.sum, dxs[0], sum.sum);
  return sum.sum;
}

}  // namespace mica::nn
