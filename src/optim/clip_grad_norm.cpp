#include "mica/optim/clip_grad_norm.hpp"

#include <cmath>
#include <functional>

#include "mica/core/error.hpp"

namespace mica::optim {
namespace {

Tensor make_scalar(const fsdp::DeviceMesh& device_mesh) {
  return {device_mesh.pool().allocate(dtype_bytes(DType::f32), MemoryRole::workspace, device_mesh.compute()), Shape{1},
          DType::f32};
}

void require_idle(const fsdp::Root& root, std::string_view what) {
  require(root.state() == fsdp::TrainingState::idle, "{} is called while the root is {}: call it between passes", what,
          fsdp::training_state_name(root.state()));
}

/// Every stretch of gradient without padding in it, unit by unit in module order.
void for_each_grad(const fsdp::Root& root, const std::function<void(const fsdp::UnitStorage&, TensorView)>& visit) {
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
    if (grad) visit(*first.storage, grad.slice(first.piece.offset, numel));
  }
}

}  // namespace

ClipResult clip_grad_norm(fsdp::Root& root, double max_norm, double p) {
  require_idle(root, "clip_grad_norm");
  require<ConfigError>(max_norm > 0, "optim.grad_clip is {}, expected more than 0", max_norm);
  require<ConfigError>(p > 0, "clip_grad_norm: p is {}, expected more than 0, or infinity", p);
  const double power = std::isinf(p) ? kInfNorm : p;
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  Kernels& kernels = device_mesh.kernels();
  Stream& compute = device_mesh.compute();
  const int shard_size = device_mesh.geometry().shard_size;
  ClipResult clip{make_scalar(device_mesh), make_scalar(device_mesh)};
  const Tensor sum = make_scalar(device_mesh);

  kernels.fill(compute, sum, 0.0);
  const auto add_units = [&](bool sharded) {
    for_each_grad(root, [&](const fsdp::UnitStorage& storage, TensorView grad) {
      if ((storage.shard_size() == shard_size) == sharded) kernels.power_sum(compute, grad, power, sum, Write::accumulate);
    });
  };
  add_units(true);
  device_mesh.shard_norm_group().all_reduce(compute, "grad_norm", sum,
                                            power == kInfNorm ? ReduceOp::max : ReduceOp::sum);
  add_units(false);
  kernels.clip_coefficient(compute, sum, power, max_norm, clip.norm, clip.coefficient);
  return clip;
}

void apply_clip(fsdp::Root& root, const ClipResult& clip) {
  require_idle(root, "apply_clip");
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  for_each_grad(root, [&](const fsdp::UnitStorage&, TensorView grad) {
    device_mesh.kernels().scale_by(device_mesh.compute(), grad, clip.coefficient);
  });
}

}  // namespace mica::optim
