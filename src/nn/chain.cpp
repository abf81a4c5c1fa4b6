#include "mica/nn/chain.hpp"

#include <algorithm>

namespace mica::nn {
namespace {

struct ChainRecord final : RecordExtra {
  std::vector<bool> input_dropped;  // of each module: made again before its backward
  bool x_needs_grad = false;        // residual only
};

/// @param y  the elements that went from the producer to the consumer.
bool drop_input(const Module& producer, const Record& producer_record, const void* y, Module& consumer,
                Record& consumer_record) {
  if (!producer.can_recompute_output(producer_record)) return false;
  Tensor* kept = consumer.saved_input(consumer_record);
  if (!kept || !*kept || kept->view().data != y) return false;  // a cast copy, or not needed at all
  *kept = Tensor();
  return true;
}

void restore_input(Context& context, std::span<Module* const> chain, Record& record, const ChainRecord& extra,
                   std::size_t i) {
  if (!extra.input_dropped[i]) return;
  Tensor* kept = chain[i]->saved_input(record.child(i));
  if (*kept) return;
  restore_input(context, chain, record, extra, i - 1);  // the producer's own input may have been dropped as well
  *kept = chain[i - 1]->recompute_output(context, record.child(i - 1));
}

ChainRecord& extra_of(Record& record) { return static_cast<ChainRecord&>(*record.extra); }

}  // namespace

Tensors chain_forward(Context& context, std::span<Module* const> chain, Tensors xs, Record* record) {
  std::vector<bool> input_dropped(chain.size(), false);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    Record* child = child_record(record);
    const void* input = xs.empty() ? nullptr : xs[0].view().data;
    xs = chain[i]->forward(context, std::move(xs), child);
    if (child && i > 0) input_dropped[i] = drop_input(*chain[i - 1], record->child(i - 1), input, *chain[i], *child);
  }
  if (record) {
    auto extra = std::make_unique<ChainRecord>();
    extra->input_dropped = std::move(input_dropped);
    record->extra = std::move(extra);
  }
  return xs;
}

Tensors chain_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys) {
  const ChainRecord& extra = extra_of(record);
  if (!chain.empty()) record.child(0).dx_sum = record.dx_sum;
  for (std::size_t i = chain.size(); i-- > 0;) {
    // The handle of a tensor that is put back here must be the Record's alone, so that the layer can free it.
    const bool any = std::ranges::any_of(dys, [](const Tensor& dy) { return static_cast<bool>(dy); });
    if (any) restore_input(context, chain, record, extra, i);
    dys = chain[i]->backward(context, std::move(record.child(i)), std::move(dys));
    if (record.is_kept() && extra.input_dropped[i]) *chain[i]->saved_input(record.child(i)) = Tensor();
  }
  if (!chain.empty()) record.child(0).dx_sum = nullptr;
  return dys;
}

Tensor* chain_saved_input(std::span<Module* const> chain, Record& record) {
  return chain.empty() ? nullptr : chain[0]->saved_input(record.child(0));
}

Tensor residual_forward(Context& context, std::span<Module* const> chain, const Tensor& x, Record* record) {
  Tensors branch = chain_forward(context, chain, list_of(x), record);
  require<Error>(branch.size() == 1 && branch[0].shape() == x.shape(),
                 "a residual branch must return one tensor of its input's shape {}, it returned {}",
                 x.shape().to_string(),
                 branch.size() == 1 ? branch[0].shape().to_string() : std::to_string(branch.size()) + " tensors");
  Tensor y = branch[0].is_unique() ? branch[0] : context.make(x.shape(), x.dtype());
  context.kernels.add(context.compute, x, branch[0], y);
  y.needs_grad = record && (x.needs_grad || branch[0].needs_grad);
  if (record) extra_of(*record).x_needs_grad = x.needs_grad;
  return y;
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
