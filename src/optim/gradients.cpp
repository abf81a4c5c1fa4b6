// SPDX-License-Identifier: Apache-2.0
#include "gradients.hpp"

#include "mica/core/error.hpp"

namespace mica::optim {

void require_idle(const fsdp::Root& root, std::string_view what) {
  require(root.state() == fsdp::TrainingState::idle, "{} is called while the root is {}: call it between passes", what,
          fsdp::training_state_name(root.state()));
}

void for_each_grad(const fsdp::Root& root, const std::function<void(TensorView grad, const fsdp::UnitStorage* storage)>& visit) {
  for (const fsdp::Stretch& stretch : root.stretches()) {
    const fsdp::UnitStorage* storage = root.units()[stretch.unit]->storage();
    if (storage->sharded_grad()) visit(storage->sharded_grad().slice(stretch.offset, stretch.numel), storage);
  }
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    if (p.parameter->requires_grad && p.parameter->grad_written) visit(p.parameter->grad, nullptr);
  }
}

Tensor make_scalar(const fsdp::DeviceMesh& device_mesh) {
  return {device_mesh.pool().allocate(dtype_bytes(DType::f32), MemoryRole::workspace, device_mesh.compute()), Shape{1}, DType::f32};
}

}  // namespace mica::optim
