// SPDX-License-Identifier: Apache-2.0
// A layer with module buffers, as batch norm has them.
#pragma once

#include "mica/nn/module.hpp"

namespace mica::fsdp::testing {

/// y = x in the weight's dtype; running_mean += 1. Notes what it saw. No backward.
class NormLike final : public nn::Module {
 public:
  explicit NormLike(std::int64_t width)
      : Module("norm_like"),
        weight_(add_parameter("weight", {width}, nn::Initializer::ones(), false)),
        mean_(add_buffer("running_mean", {width}, DType::f32, nn::Initializer::normal(1))),
        batches_(add_buffer("num_batches", {1}, DType::i64, nn::Initializer::zeros())) {}

  DType weight_seen = DType::u8, mean_seen = DType::u8, batches_seen = DType::u8;
  [[nodiscard]] nn::ModuleBuffer& mean() { return mean_; }
  [[nodiscard]] nn::ModuleBuffer& batches() { return batches_; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record*) override {
    weight_seen = data_of(weight_).dtype;
    mean_seen = data_of(mean_).dtype;
    batches_seen = data_of(batches_).dtype;
    const Tensor ones = context.make(mean_.shape, mean_seen);
    context.kernels.fill(context.compute, ones, 1.0);
    context.kernels.add(context.compute, ones, data_of(mean_), data_of(mean_));
    Tensor y = context.make(xs[0].shape(), weight_seen);
    context.kernels.copy(context.compute, xs[0], y);
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context&, nn::Record&, nn::Tensors) override { return nn::Tensors(1); }

 private:
  nn::Parameter& weight_;
  nn::ModuleBuffer& mean_;
  nn::ModuleBuffer& batches_;
};

}  // namespace mica::fsdp::testing
