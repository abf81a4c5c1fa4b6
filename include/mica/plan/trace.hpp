#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mica/nn/module.hpp"
#include "mica/plan/pass_profile.hpp"
#include "mica/plan/unit_spec.hpp"

namespace mica::plan {

/// An input of the model's forward. It is counted where TraceOptions::counts_inputs says so.
struct InputSpec {
  Shape shape;
  DType dtype = DType::f32;
};

struct TraceOptions {
  DType param_dtype = DType::f32;
  DType reduce_dtype = DType::f32;  ///< of the gradients that backward writes
  bool loss_in_backward = false;    ///< as nn::Context's
  nn::Recompute recompute = nn::Recompute::none;
  bool counts_inputs = false;       ///< they come from the pool (copies on a GPU), and not from the caller's own memory
  /// Whose scratch memory is counted.
  std::function<std::unique_ptr<Kernels>(Pool&)> make_kernels = [](Pool& pool) { return make_cpu_kernels(pool); };
};

/// Finds out what a model's pass does to memory, in the order of its units' hooks, without doing it: forward and
/// backward run on a stream that drops its tasks, with a pool that hands out addresses without memory behind them. So
/// it is exact, serves any model and any size, and takes the time of enqueueing. [Note: dry pass]
/// Example: a second model of the same config, before anything is sharded:
///   trace_pass(*make_model(config), units_of(root), {{ids, DType::i32}, {targets, DType::i32}}, {});
/// @param model   neither sharded nor with storage; built and checkpointed like the planned one. Its parameters have no
///                storage afterwards.
/// @param units   their names are looked up in `model`.
/// @throws Error when a unit's name is not found or a module has hooks.
[[nodiscard]] PassProfile trace_pass(nn::Module& model, const std::vector<UnitSpec>& units,
                                     const std::vector<InputSpec>& inputs, const TraceOptions& options = {});

}  // namespace mica::plan
