#include "gradients.hpp"

#include "mica/core/error.hpp"

namespace mica::optim {

void require_idle(const fsdp::Root& root, std::string_view what) {
  require(root.state() == fsdp::TrainingState::idle, "{} is called while the root is {}: call it between passes", what,
          fsdp::training_state_name(root.state()));
}

void for_each_grad(const fsdp::Root& root, const std::function<void(const GradStretch&)>& visit) {
  const std::vector<fsdp::ShardedParameter> parameters = root.parameters();
  for (std::size_t begin = 0, end = 0; begin < parameters.size(); begin = end) {
    const fsdp::ShardedParameter& first = parameters[begin];
    std::int64_t numel = first.piece.numel();
    for (end = begin + 1; end < parameters.size(); ++end) {
      const fsdp::ShardedParameter& next = parameters[end];
      if (next.storage != first.storage || next.piece.offset != first.piece.offset + numel) break;
      numel += next.piece.numel();
    }
    const TensorView grad = first.storage->sharded_grad();
    if (grad) visit({grad.slice(first.piece.offset, numel), first.storage->shard_size(), &first.storage->device_mesh()});
  }
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    if (p.parameter->requires_grad && p.parameter->grad_written) visit({p.parameter->grad, 1, &root.device_mesh()});
  }
}

Tensor make_scalar(const fsdp::DeviceMesh& device_mesh) {
  return {device_mesh.pool().allocate(dtype_bytes(DType::f32), MemoryRole::workspace, device_mesh.compute()), Shape{1},
          DType::f32};
}

}  // namespace mica::optim
