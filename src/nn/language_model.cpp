// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/language_model.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {

Tensors LanguageModel::do_forward(Context& context, Tensors xs, Record* record) {
  if (!xs.empty()) expect_ids(*this, xs[0]);
  require<Error>(!context.cache || !record,
                 "a '{}' keeps keys and values for sequences that go on: such a forward has no backward, pass no Record", type_name());
  return SupervisedModel::do_forward(context, std::move(xs), record);
}

}  // namespace mica::nn
