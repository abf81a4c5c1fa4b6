// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/dropout.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {
namespace {
struct DropoutRecord final : RecordExtra {
  explicit DropoutRecord(RandomPoint drawn_from) : point(std::move(drawn_from)) {}
  RandomPoint point;
};
}  // namespace

Dropout::Dropout(double p, std::string_view full_name) : Module("dropout"), p_(p), name_hash_(hash_name(full_name)) {
  require<ConfigError>(p >= 0 && p < 1, "model.dropout is {}, expected a probability in [0, 1)", p);
}

Tensors Dropout::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  const Tensor& x = xs[0];
  if (passes_through(context)) return xs;
  RandomPoint point = random_point(context);
  Tensor y = drop(context, x, point);
  y.needs_grad = record && x.needs_grad;
  if (y.needs_grad) record->extra = std::make_unique<DropoutRecord>(std::move(point));
  return list_of(std::move(y));
}

Tensors Dropout::do_backward(Context& context, Record& record, Tensors dys) {
  if (!record.needs_dx(0)) return Tensors(1);
  if (!record.extra) return dys;
  return list_of(drop(context, dys[0], static_cast<DropoutRecord&>(*record.extra).point));
}

Tensor Dropout::drop(Context& context, const Tensor& x, const RandomPoint& point) const {
  require<Error>(static_cast<std::int64_t>(point.sequences.size()) == x.shape()[0],
                 "dropout over a batch of {} rows needs context.sequences to hold their {} global sequence ids, it holds {}", x.shape()[0],
                 x.shape()[0], point.sequences.size());
  Tensor y = context.make(x.shape(), x.dtype());
  const RandomKey key{.seed = point.seed, .step = point.step, .sequence = 0, .name_hash = name_hash_};
  context.kernels.dropout(context.compute, x, p_, key, point.sequences, y);
  return y;
}

}  // namespace mica::nn
