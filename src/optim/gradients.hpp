// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "mica/fsdp/root.hpp"
#include "mica/tensor/tensor.hpp"

// For clipping and loss scaling: the gradients of a root, between passes.
namespace mica::optim {

/// @throws Error naming the state when the root is in a pass.
void require_idle(const fsdp::Root& root, std::string_view what);

/// This rank's gradients without padding, in stretches: unit by unit in module order, then those of ignored parameters that
/// have one ([Note: ignored parameters]).
/// @param visit  the unit's storage is null for an ignored parameter, which is whole on each rank.
void for_each_grad(const fsdp::Root& root, const std::function<void(TensorView grad, const fsdp::UnitStorage* storage)>& visit);

/// [1] f32, workspace of the compute stream.
[[nodiscard]] Tensor make_scalar(const fsdp::DeviceMesh& device_mesh);

}  // namespace mica::optim
