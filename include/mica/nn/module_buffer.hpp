#pragma once

#include <string>

#include "mica/nn/parameter.hpp"

namespace mica::nn {

/// A tensor of a module that is no parameter (running statistics, tables): whole on every rank, without a gradient, not
/// stepped by optimizers. A forward may read and write it. Like a parameter it has no storage of its own: whoever holds
/// the storage (the fsdp root, PlainParameters) sets `data`.
struct ModuleBuffer {
  std::string name;  ///< within its module, e.g. "running_mean"
  Shape shape;
  DType dtype = DType::f32;  ///< the original one: that of state dicts
  Initializer init;

  TensorView data;  ///< [shape]; its dtype is what the forward sees: `dtype`, or a unit's buffer_dtype
};

}  // namespace mica::nn
