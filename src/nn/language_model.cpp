#include "mica/nn/language_model.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {
namespace {
constexpr std::size_t kBodyRecord = 0, kHeadRecord = 1;
}  // namespace

Tensors LanguageModel::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, xs.size() == 1 ? 1 : 2);
  expect_ids(*this, xs[0]);
  require<Error>(head_ != nullptr, "a '{}' has no head: call set_head() in its constructor", type_name());
  const Tensor targets = xs.size() == 2 ? xs[1] : Tensor();
  xs.resize(1);
  Tensors hidden = chain_forward(context, body_, std::move(xs), child_record(record));
  if (targets) hidden.push_back(targets);
  return head_->forward(context, std::move(hidden), child_record(record));
}

Tensors LanguageModel::do_backward(Context& context, Record& record, Tensors dys) {
  Tensors dhidden = head_->backward(context, std::move(record.child(kHeadRecord)), std::move(dys));
  dhidden.resize(1);
  static_cast<void>(chain_backward(context, body_, record.child(kBodyRecord), std::move(dhidden)));
  return Tensors(record.input_needs_grad.size());
}

}  // namespace mica::nn
