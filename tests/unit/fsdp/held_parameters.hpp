// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "mica/nn/init.hpp"

#include "support/random_case.hpp"

// What the differential test's runs see of parameters, and the ones that nobody shards.
namespace mica::testing {

inline constexpr double kLr = 0.1;
inline constexpr std::uint64_t kSeed = 3;

using Values = std::vector<float>;

/// Elements [begin, ...) of a parameter, as one rank has them at the beginning of a step.
struct Part {
  std::size_t parameter;
  std::int64_t begin;
  Values master, gradient;
  bool has_gradient = false;
  Values own_gradient{};  // of an ignored parameter: before the test reduced it
};

inline Values values_of(nn::Context& context, ConstTensorView view) {
  Values values(static_cast<std::size_t>(view.numel()));
  context.kernels.copy(context.compute, view, {values.data(), view.shape, DType::f32});
  context.compute.synchronize();
  return values;
}

/// Who ignores parameters holds them: fp32 masters, what modules see of them, and gradients, which nobody else reduces.
class IgnoredParameters {
 public:
  IgnoredParameters(const RandomCase& c, fsdp::Root& root, nn::Module& model, nn::Context& context)
      : dtype_(c.options.param_dtype()), full_precision_in_eval_(c.options.root->full_precision_in_eval), context_(context) {
    std::vector<std::string> names;
    for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
      names.push_back(p.full_name);
      const Shape& shape = p.parameter->shape;
      held_.push_back({p.parameter, 0, context.make(shape, DType::f32), context.make(shape, dtype_), context.make(shape, DType::f32)});
      nn::fill_initial(context.kernels, context.compute, *p.parameter, p.full_name, kSeed, 0, held_.back().master);
      if (p.parameter->requires_grad) p.parameter->grad = held_.back().grad;
    }
    EXPECT_EQ(names, c.ignored_names());
    std::size_t n = 0;
    model.for_each_parameter([&](const std::string&, nn::Parameter& p) {
      for (Held& each : held_) {
        if (each.parameter == &p) each.index = n;
      }
      ++n;
    });
    show(true);
  }
  ~IgnoredParameters() {
    for (const Held& each : held_) each.parameter->data = each.parameter->grad = {};
  }
  IgnoredParameters(const IgnoredParameters&) = delete;
  IgnoredParameters& operator=(const IgnoredParameters&) = delete;

  /// To the forwards that come.
  void show(bool training) {
    for (const Held& each : held_) {
      const bool is_low = training || !full_precision_in_eval_;
      if (is_low) context_.kernels.copy(context_.compute, each.master, each.low);
      each.parameter->data = is_low ? each.low.view() : each.master.view();
    }
  }
  /// Means over the ranks. @collective
  void reduce(ProcessGroup& world, std::vector<Part>& parts) {
    for (const Held& each : held_) {
      Part part{each.index, 0, values_of(context_, each.master), {}, each.parameter->grad_written, {}};
      if (part.has_gradient) {
        part.own_gradient = values_of(context_, each.grad);
        world.all_reduce(context_.compute, "ignored", each.grad, ReduceOp::sum);
        context_.kernels.scale(context_.compute, each.grad, 1.0 / world.num_ranks(), each.grad, Write::overwrite);
        part.gradient = values_of(context_, each.grad);
      }
      parts.push_back(std::move(part));
    }
  }
  void step() {
    for (const Held& each : held_) {
      if (!std::exchange(each.parameter->grad_written, false)) continue;
      context_.kernels.sgd(context_.compute, {.param = each.master, .grad = each.grad, .lr = kLr});
    }
    show(true);
  }
  void add_masters(std::vector<Part>& parts) {
    for (const Held& each : held_) parts.push_back({each.index, 0, values_of(context_, each.master), {}, false, {}});
  }

 private:
  struct Held {
    nn::Parameter* parameter;
    std::size_t index;  // in module order
    Tensor master, low, grad;
  };
  DType dtype_;
  bool full_precision_in_eval_;
  nn::Context& context_;
  std::vector<Held> held_;
};

}  // namespace mica::testing
