// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/nn/parameter.hpp"

namespace mica::nn {

/// A tensor of a module that is not a parameter (running statistics, tables): whole on every rank, without a gradient, not
/// stepped by optimizers. A forward may read and write it. Like a parameter it does not own storage: whoever does (the fsdp
/// root, PlainParameters) sets `data`.
struct ModuleBuffer {
  std::string name;  ///< within its module, e.g. "running_mean"
  Shape shape;
  DType dtype = DType::f32;  ///< the original one, as in state dicts
  Initializer init;

  TensorView data;  ///< [shape]; its dtype is what the forward sees: `dtype`, or a unit's buffer_dtype
};

}  // namespace mica::nn
