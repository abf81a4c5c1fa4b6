// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/tensor/kernels.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica::nn {

/// A parameter's initial values. They depend on (seed, full name, element) only, so any piece can be made by itself.
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal } kind = Kind::zeros;
  double std = 0.02;

  static Initializer zeros() { return {Kind::zeros, 0}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer normal(double std) { return {Kind::normal, std}; }
};

/// Where a backward writes a parameter's gradient. view absent: no gradient is wanted.
struct GradTarget {
  TensorView view;
  Write mode = Write::overwrite;
  RowTurns* turns = nullptr;  ///< other ranks write it, too ([Note: writing in turns])
};

class ModuleHooks;

/// A learnable tensor of a module. It does not own storage: whoever does (an fsdp unit, PlainParameters) sets `data` while the
/// parameter is unsharded and `grad` while a gradient may be written.
struct Parameter {
  std::string name;  ///< within its module, e.g. "weight"
  Shape shape;
  Initializer init;
  bool requires_grad = true;
  bool weight_decay = false;  ///< matrices yes; biases and norms no
  /// The unit that owns the storage; null if no unit does.
  const ModuleHooks* holder = nullptr;

  TensorView data;                 ///< [shape]; absent while sharded
  TensorView grad;                 ///< [shape], its own dtype; absent while no gradient may be written
  RowTurns* grad_turns = nullptr;  ///< in which `grad` is written; null: this rank writes it alone
  bool grad_written = false;       ///< since the storage was provided: the next write accumulates

  /// Where one backward writes the gradient; marks it as written. Absent for a frozen parameter.
  [[nodiscard]] GradTarget write_grad() {
    invariant(!grad_turns, "only modules that say so (Module::writes_grads_in_turns()) write gradients in turns");
    return write_grad_in_turns();
  }
  /// The same where the gradient may be one that ranks share: for a module that writes GradTarget::view in GradTarget::turns.
  [[nodiscard]] GradTarget write_grad_in_turns() {
    if (!requires_grad) return {};
    invariant(static_cast<bool>(grad) || shape.numel() == 0, "a gradient is written while its storage is there");
    const GradTarget target{grad, grad_written ? Write::accumulate : Write::overwrite, grad_turns};
    grad_written = true;
    return target;
  }
};

}  // namespace mica::nn
