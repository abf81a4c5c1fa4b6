// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/supervised_model.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {
namespace {
constexpr std::size_t kBodyRecord = 0, kHeadRecord = 1;
}  // namespace

Tensors SupervisedModel::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, xs.size() == 1 ? 1 : 2);
  require<Error>(head_ != nullptr, "a '{}' has no head: call set_head() in its constructor", type_name());
  const Tensor targets = xs.size() == 2 ? xs[1] : Tensor();
  xs.resize(1);
  Tensors outputs = chain_forward(context, body_, std::move(xs), child_record(record));
  if (targets) outputs.push_back(targets);
  return head_->forward(context, std::move(outputs), child_record(record));
}

Tensors SupervisedModel::do_backward(Context& context, Record& record, Tensors dys) {
  Tensors dxs = head_->backward(context, std::move(record.child(kHeadRecord)), std::move(dys));
  dxs.resize(1);
  dxs = chain_backward(context, body_, record.child(kBodyRecord), std::move(dxs));
  dxs.resize(record.input_needs_grad.size());  // none for the targets
  return dxs;
}

}  // namespace mica::nn
