// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/clip_grad_norm.hpp"

#include <algorithm>
#include <cmath>

#include "mica/core/error.hpp"
#include "mica/fsdp/fully_shard.hpp"
#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/fsdp/unit_tree.hpp"
#include "mica/tensor/exact_sum.hpp"

#include "gradients.hpp"

namespace mica::optim {
namespace {

/// Number of ranks that hold a part of the gradient: 1 for an ignored parameter.
int shard_size_of(const fsdp::UnitStorage* storage) { return storage ? storage->shard_size() : 1; }

/// Sets sum to the sum of |g|^power over all ranks, by [Note: exact sums]. Only the first rank adds what is not sharded.
void exact_sum(const fsdp::Root& root, double power, TensorView sum) {
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  Kernels& kernels = device_mesh.kernels();
  Stream& compute = device_mesh.compute();
  const ProcessGroup& group = device_mesh.shard_norm_group();
  const Shape shape{group.num_ranks(), ExactSum::kLimbs};
  const Tensor limbs{device_mesh.pool().allocate(shape.numel() * dtype_bytes(DType::i64), MemoryRole::workspace, compute), shape,
                     DType::i64};
  const TensorView mine = limbs.view().slice(group.rank() * ExactSum::kLimbs, ExactSum::kLimbs);
  kernels.fill(compute, mine, 0);
  for_each_grad(root, [&](TensorView grad, const fsdp::UnitStorage* storage) {
    if (shard_size_of(storage) == 1 && group.rank() != 0) return;
    kernels.exact_power_sum(compute, grad, power, mine, Write::accumulate);
  });
  device_mesh.shard_norm_group().all_gather(compute, "grad_norm", mine, limbs);
  kernels.exact_sum_value(compute, limbs, sum);
}

/// The grids of ranks that units are on, the root's first.
std::vector<const fsdp::DeviceMesh*> grids_of(const fsdp::Root& root) {
  std::vector<const fsdp::DeviceMesh*> grids;
  for (const fsdp::Unit* unit : root.units()) {
    if (std::ranges::find(grids, &unit->device_mesh()) == grids.end()) grids.push_back(&unit->device_mesh());
  }
  return grids;
}

}  // namespace

ClipCoefficient clip_coefficient(fsdp::Root& root, double max_norm, double p) {
  require_idle(root, "clip_coefficient");
  require<ConfigError>(max_norm > 0, "optim.grad_clip is {}, expected more than 0", max_norm);
  require<ConfigError>(p > 0, "clipping: p is {}, expected more than 0, or infinity", p);
  const double power = std::isinf(p) ? kInfNorm : p;
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  Kernels& kernels = device_mesh.kernels();
  Stream& compute = device_mesh.compute();
  ClipCoefficient clip{make_scalar(device_mesh), make_scalar(device_mesh)};
  const Tensor sum = make_scalar(device_mesh);

  if (root.options().deterministic && power != kInfNorm) {  // a maximum does not depend on the order
    fsdp::require_one_mesh(root, "the norm of a deterministic run");
    exact_sum(root, power, sum);
    kernels.clip_coefficient(compute, sum, power, max_norm, clip.norm, clip.coefficient);
    return clip;
  }
  const auto grid_of = [&](const fsdp::UnitStorage* s) { return s ? &s->device_mesh() : &device_mesh; };
  const auto is_whole = [&](const fsdp::UnitStorage* s) { return shard_size_of(s) != grid_of(s)->geometry().shard_size; };
  kernels.fill(compute, sum, 0.0);
  for (const fsdp::DeviceMesh* grid : grids_of(root)) {
    const bool is_first = grid == &device_mesh;
    const Tensor part = is_first ? sum : make_scalar(device_mesh);
    if (!is_first) kernels.fill(compute, part, 0.0);
    for_each_grad(root, [&](TensorView grad, const fsdp::UnitStorage* storage) {
      if (grid_of(storage) != grid || is_whole(storage)) return;
      kernels.power_sum(compute, grad, power, part, Write::accumulate);
    });
    grid->shard_norm_group().all_reduce(compute, "grad_norm", part, power == kInfNorm ? ReduceOp::max : ReduceOp::sum);
    if (!is_first) kernels.power_sum(compute, part, power == kInfNorm ? kInfNorm : 1, sum, Write::accumulate);
  }
  for_each_grad(root, [&](TensorView grad, const fsdp::UnitStorage* storage) {
    if (is_whole(storage)) kernels.power_sum(compute, grad, power, sum, Write::accumulate);
  });
  kernels.clip_coefficient(compute, sum, power, max_norm, clip.norm, clip.coefficient);
  return clip;
}

Tensor clip_grad_norm(fsdp::Root& root, double max_norm, double p) {
  require_idle(root, "clip_grad_norm");
  ClipCoefficient clip = clip_coefficient(root, max_norm, p);
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  for_each_grad(root, [&](TensorView grad, const fsdp::UnitStorage*) {
    device_mesh.kernels().scale_by(device_mesh.compute(), grad, clip.coefficient);
  });
  return std::move(clip.norm);
}

Tensor clip_grad_norm(nn::Module& module, double max_norm, double p) {
  fsdp::Root& root = fsdp::root_of(module);
  const auto unit = std::ranges::find(root.units(), &module, [](const fsdp::Unit* each) { return &each->module(); });
  require(unit == root.units().begin(),
          "clip_grad_norm is called on unit {}, which is inside the root {}: the norm is the whole model's, call it on the "
          "root module",
          (*unit)->name(), root.units().front()->module().type_name());
  return clip_grad_norm(root, max_norm, p);
}

}  // namespace mica::optim
