// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/fan_out.hpp"

#include <utility>

namespace mica::nn {
namespace {

constexpr std::size_t kKeptInput = 0;  // record.saved, empty when no module keeps the input

struct FanRecord final : RecordExtra {
  std::vector<bool> shares_input;  // of each module: its Record borrows the fan's input during its backward
};

/// Drops the Record's own handle of x, since the fan-out keeps one. A cast copy of x, which a unit makes, is kept.
bool drop_shared_input(Module& module, Record& record, const Tensor& x) {
  Tensor* kept = module.saved_input(record);
  if (!kept || !*kept || kept->view().data != x.view().data) return false;
  *kept = Tensor();
  return true;
}

/// Adds dx to the sum of the modules before it, in place where the memory is the sum's alone.
void add_dx(Context& context, GradientSum& sum, Tensor dx) {
  if (!dx || std::exchange(sum.used, false)) return;
  if (!sum.sum) {
    sum.sum = std::move(dx);
    return;
  }
  const Tensor total = sum.sum.is_unique() ? sum.sum : context.make(dx.shape(), dx.dtype());
  context.kernels.add(context.compute, sum.sum, dx, total);
  sum.sum = total;
}

}  // namespace

Tensors fan_out_forward(Context& context, std::span<Module* const> fan, const Tensor& x, Record* record) {
  auto extra = std::make_unique<FanRecord>();
  bool any = false;
  Tensors ys;
  for (Module* module : fan) {
    Record* child = child_record(record);
    Tensors y = module->forward(context, list_of(x), child);
    require<Error>(y.size() == 1, "a '{}' that shares its input with other modules must return one tensor, it returned {}",
                   module->type_name(), y.size());
    ys.push_back(std::move(y[0]));
    extra->shares_input.push_back(child && drop_shared_input(*module, *child, x));
    any = any || extra->shares_input.back();
  }
  if (record) {
    if (any) record->saved = {x};
    record->extra = std::move(extra);
  }
  return ys;
}

Tensor fan_out_backward(Context& context, std::span<Module* const> fan, Record& record, Tensors dys) {
  const std::vector<bool>& shares_input = static_cast<FanRecord&>(*record.extra).shares_input;
  Tensor x = record.saved.empty() ? Tensor() : record.take(kKeptInput);
  std::size_t last = 0;  // module that needs x
  for (std::size_t i = 0; i < fan.size(); ++i) last = shares_input[i] && dys[i] ? i : last;
  GradientSum sum;
  for (std::size_t i = 0; i < fan.size(); ++i) {
    Record& child = record.child(i);
    const bool lends = shares_input[i] && dys[i];
    // Handed over for its last use, so that the module can free it before it allocates more.
    if (lends) *fan[i]->saved_input(child) = i == last ? std::move(x) : x;
    child.dx_sum = sum.sum && sum.sum.is_unique() ? &sum : nullptr;
    Tensors dxs = fan[i]->backward(context, std::move(child), list_of(std::move(dys[i])));
    if (record.is_kept() && lends) *fan[i]->saved_input(child) = Tensor();
    child.dx_sum = nullptr;
    add_dx(context, sum, std::move(dxs.at(0)));
  }
  return sum.sum;
}

Tensor* fan_out_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kKeptInput]; }

}  // namespace mica::nn
