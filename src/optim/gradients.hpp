#pragma once

#include <functional>
#include <string_view>

#include "mica/fsdp/root.hpp"
#include "mica/tensor/tensor.hpp"

// What clipping and loss scaling share: the gradients of a root, from outside a pass.
namespace mica::optim {

/// @throws Error naming the state when the root is in a pass.
void require_idle(const fsdp::Root& root, std::string_view what);

/// A stretch of this rank's gradients without padding in it.
struct GradStretch {
  TensorView grad;
  int shard_size;  // ranks that the parameter is cut over; 1: each rank has the whole gradient
  const fsdp::DeviceMesh* grid;  // its unit's; the root's for ignored parameters
};
/// All of them, unit by unit in module order, then those of ignored parameters that have one ([Note: ignored
/// parameters]).
void for_each_grad(const fsdp::Root& root, const std::function<void(const GradStretch&)>& visit);

/// [1] f32, workspace of the compute stream.
[[nodiscard]] Tensor make_scalar(const fsdp::DeviceMesh& device_mesh);

}  // namespace mica::optim
