// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mica/nn/module.hpp"
#include "mica/plan/pass_profile.hpp"
#include "mica/plan/unit_spec.hpp"

namespace mica::plan {

/// An input of the model's forward, counted if TraceOptions::counts_inputs is set.
struct InputSpec {
  Shape shape;
  DType dtype = DType::f32;
};

struct TraceOptions {
  DType param_dtype = DType::f32;
  DType reduce_dtype = DType::f32;  ///< of the gradients that backward writes
  bool loss_in_backward = false;    ///< as nn::Context's
  nn::Recompute recompute = nn::Recompute::none;
  bool counts_inputs = false;  ///< inputs come from the pool (copies on a GPU), not from the caller's memory
  /// The kernels whose scratch memory is counted.
  std::function<std::unique_ptr<Kernels>(Pool&)> make_kernels = [](Pool& pool) { return make_cpu_kernels(pool); };
};

/// Measures a model's memory use in a pass, between its units' hooks, without computing: forward and backward run on a stream that drops
/// its tasks, with a pool that returns addresses without memory. The result is exact for any model and size, and takes only as long as
/// enqueueing. [Note: dry pass]
/// Example: a second model of the same config, before anything is sharded:
///   trace_pass(*make_model(config), units_of(root), {{ids, DType::i32}, {targets, DType::i32}}, {});
/// @param model   not sharded, without storage; built and checkpointed like the planned model. Its parameters have no storage afterwards.
/// @param units   their names are looked up in `model`.
/// @throws Error if a unit's name is not found or a module has hooks.
[[nodiscard]] PassProfile trace_pass(nn::Module& model, const std::vector<UnitSpec>& units, const std::vector<InputSpec>& inputs,
                                     const TraceOptions& options = {});

}  // namespace mica::plan
