// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/state_dict.hpp"

#include <algorithm>

#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/state_dict_settings.hpp"

#include "gradients.hpp"
#include "optim_arrays.hpp"
#include "state_dict_check.hpp"
#include "state_dict_text.hpp"

namespace mica::optim {

namespace {

using fsdp::StateTensor;

std::vector<OptimStateDict::Group> groups_of(const Optimizer& optimizer) {
  std::vector<OptimStateDict::Group> groups;
  for (const ParamGroup& group : optimizer.groups()) {
    groups.push_back({{group.parameters.begin(), group.parameters.end()}, optimizer.group_options(group)});
  }
  return groups;
}

bool has_state(const Optimizer& optimizer, std::string_view parameter) {
  return !optimizer.state_kinds().empty() && optimizer.steps_of(parameter) > 0;
}

void put_steps(ParameterState& state, const Optimizer& optimizer, const std::string& parameter) {
  if (optimizer.counts_steps()) state.scalars[kStep] = static_cast<double>(optimizer.steps_of(parameter));
}

/// Gathers the state unit by unit and keeps part `part` of `num_parts` of the rows of each parameter.
OptimStateDict gathered_state(const Optimizer& optimizer, bool keeps, int part, int num_parts) {
  const auto kept = [&](const fsdp::StateArray& array) -> std::optional<fsdp::Rows> {
    if (!keeps || !has_state(optimizer, array.key)) return std::nullopt;
    return fsdp::rows_of_part(array.shape, part, num_parts);
  };
  OptimStateDict dict;
  for (const std::string& kind : optimizer.state_kinds()) {
    for (auto& [name, tensor] : fsdp::save_rows(arrays_of(optimizer, kind), kept, /*on_host=*/true)) {
      ParameterState& state = dict.state[name];
      state.tensors[kind] = tensor;
      put_steps(state, optimizer, name);
    }
  }
  if (keeps) dict.groups = groups_of(optimizer);
  optimizer.root().device_mesh().compute().synchronize();
  return dict;
}

/// The shard ranks gather one parameter after the other, so they must all have the same parameters.
void require_equal_keys(const OptimStateDict& dict, const fsdp::DeviceMesh& device_mesh) {
  std::string names;
  for (const auto& [key, state] : dict.state) names += name_of(key) + '\n';
  const std::vector<std::string> of_ranks =
      make_group_comm(device_mesh.mesh().shard(), device_mesh.compute(), "optimizer state")->gather_strings(names);
  for (std::size_t r = 1; r < of_ranks.size(); ++r) {
    if (of_ranks[r] == of_ranks[0]) continue;
    // Finds the first name that only one of the two has; both are sorted.
    const auto [a, b] = std::ranges::mismatch(of_ranks[0], of_ranks[r]);
    const std::size_t begin =
        a == of_ranks[0].begin() ? 0 : of_ranks[0].rfind('\n', static_cast<std::size_t>(a - of_ranks[0].begin() - 1)) + 1;
    const std::string first = of_ranks[0].substr(begin, of_ranks[0].find('\n', begin) - begin);
    const std::string other = of_ranks[r].substr(begin, of_ranks[r].find('\n', begin) - begin);
    const bool first_has_it = other.empty() || (!first.empty() && first < other);
    throw CheckpointError(
        fmt::format("the sharded optimizer state has parameter {} on rank {} of the shard axis and not on rank {}: "
                    "give every rank its part "
                    "of the same state dict",
                    first_has_it ? first : other, first_has_it ? 0 : r, first_has_it ? r : 0));
  }
}

}  // namespace

OptimStateDict full_optim_state_dict(const Optimizer& optimizer, bool rank0_only) {
  require_idle(optimizer.root(), "full_optim_state_dict");
  return gathered_state(optimizer, !rank0_only || optimizer.root().device_mesh().mesh().rank() == 0, 0, 1);
}

OptimStateDict sharded_optim_state_dict(const Optimizer& optimizer) {
  require_idle(optimizer.root(), "sharded_optim_state_dict");
  const Mesh& mesh = optimizer.root().device_mesh().mesh();
  return gathered_state(optimizer, true, mesh.shard_rank(), mesh.shard_size());
}

OptimStateDict local_optim_state_dict(const Optimizer& optimizer) {
  require_idle(optimizer.root(), "local_optim_state_dict");
  const fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  OptimStateDict dict{.state = {}, .groups = groups_of(optimizer)};
  for (const auto& [name, parameter] : parameters_of(optimizer)) {
    if (has_state(optimizer, name)) put_steps(dict.state[name], optimizer, name);  // even if this rank holds no part of it
  }
  for (const std::string& kind : optimizer.state_kinds()) {
    for (const fsdp::StateArray& array : arrays_of(optimizer, kind).all) {
      const std::optional<fsdp::Piece> piece = array.piece();
      if (!piece || !has_state(optimizer, array.key)) continue;
      StateTensor tensor = StateTensor::on_host(Shape{piece->numel()}, DType::f32);
      device_mesh.kernels().copy(device_mesh.compute(), array.data.slice(piece->offset, piece->numel()), tensor.view());
      dict.state[array.key].tensors[kind] = std::move(tensor);
    }
  }
  device_mesh.compute().synchronize();
  return dict;
}

OptimStateDict optim_state_dict(const Optimizer& optimizer) {
  const fsdp::StateDictSettings settings = fsdp::state_dict_settings(optimizer.root().units().front()->module());
  switch (settings.kind) {
    case fsdp::StateDictKind::full:
      break;
    case fsdp::StateDictKind::sharded:
      return sharded_optim_state_dict(optimizer);
    case fsdp::StateDictKind::local:
      return local_optim_state_dict(optimizer);
  }
  return full_optim_state_dict(optimizer, std::get<fsdp::FullOptimStateDictConfig>(settings.optim).rank0_only);
}

OptimStateDict local_from_sharded_optim_state_dict(const OptimStateDict& sharded, const Optimizer& optimizer) {
  fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  const Mesh& mesh = device_mesh.mesh();
  Stream& compute = device_mesh.compute();
  const Parameters parameters = parameters_of(optimizer);
  OptimStateDict local;
  make_group_comm(mesh.shard(), compute, "local_from_sharded_optim_state_dict")->agree([&] {
    local = by_name(sharded, optimizer);
    check_state(local, optimizer, false);
    for (const auto& [key, state] : local.state) {
      const Shape& shape = parameters.at(name_of(key)).shape;
      const fsdp::Rows rows = fsdp::rows_of_part(shape, mesh.shard_rank(), mesh.shard_size());
      for (const auto& [kind, tensor] : state.tensors) {
        require<CheckpointError>(tensor.global_shape() == shape && tensor.row_begin() == rows.begin &&
                                     tensor.shape() == fsdp::with_rows(shape, rows.end - rows.begin),
                                 "{} of parameter {} has rows {} in the state dict, from row {} of {}, expected rows [{}, {}) of {}", kind,
                                 name_of(key), tensor.shape().to_string(), tensor.row_begin(), tensor.global_shape().to_string(),
                                 rows.begin, rows.end, shape.to_string());
      }
    }
  });
  require_equal_keys(local, device_mesh);
  for (auto& [key, state] : local.state) {
    const fsdp::StateArray& parameter = parameters.at(name_of(key));
    const Shape& shape = parameter.shape;
    if (shape.num_dims() == 0) {  // it is not cut: every rank has it
      state.tensors = parts_of(state.tensors, parameter, device_mesh);
      continue;
    }
    // Every rank sends as many rows as the first one has, so that the rows of all ranks are contiguous; those past the end
    // are dropped.
    const std::int64_t numel = fsdp::rows_of_part(shape, 0, mesh.shard_size()).end * fsdp::row_numel_of(shape);
    fsdp::StateDict whole;
    for (const auto& [kind, tensor] : state.tensors) {
      const Shape padded{numel * mesh.shard_size()};
      const Tensor all{device_mesh.pool().allocate(padded.numel() * dtype_bytes(DType::f32), MemoryRole::communication, compute), padded,
                       DType::f32};
      const TensorView mine = all.view().slice(numel * mesh.shard_rank(), numel);
      device_mesh.kernels().fill(compute, mine, 0.0);
      if (tensor.numel() > 0) device_mesh.kernels().copy(compute, tensor.view(), mine.slice(0, tensor.numel()));
      mesh.shard().all_gather(compute, name_of(key).c_str(), mine, all);
      whole[kind] = StateTensor(all);
    }
    state.tensors = parts_of(whole, parameter, device_mesh);
  }
  return local;
}

OptimStateDict shard_full_optim_state_dict(const OptimStateDict& full, const Optimizer& optimizer) {
  const OptimStateDict named = by_name(full, optimizer);
  check_state(named, optimizer, true);
  OptimStateDict local{.state = {}, .groups = named.groups};
  const Parameters parameters = parameters_of(optimizer);
  for (const auto& [key, state] : named.state) {
    local.state[key] = {parts_of(state.tensors, parameters.at(name_of(key)), optimizer.root().device_mesh()), state.scalars};
  }
  return local;
}

OptimStateDict scatter_full_optim_state_dict(const OptimStateDict* full, const Optimizer& optimizer) {
  fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  ProcessGroup& world = device_mesh.metrics_group();
  Stream& compute = device_mesh.compute();
  const bool is_source = world.rank() == 0;
  const Parameters parameters = parameters_of(optimizer);
  OptimStateDict dict;
  make_group_comm(world, compute, "scatter_full_optim_state_dict")->agree([&] {
    if (!is_source) return;
    require(full != nullptr, "scatter_full_optim_state_dict has no full state here: only rank 0's is used, give it there");
    dict = by_name(*full, optimizer);
    check_state(dict, optimizer, true);
  });
  const std::string text = make_group_comm(world, compute, "optimizer state")->gather_strings(is_source ? text_of(dict) : "").front();
  OptimStateDict local = dict_without_tensors(text);
  for (auto& [key, state] : local.state) {
    const std::string& name = name_of(key);
    const Shape& shape = parameters.at(name).shape;
    const std::int64_t bytes = shape.numel() * dtype_bytes(DType::f32);
    for (auto& [kind, tensor] : state.tensors) {
      const Tensor whole{device_mesh.pool().allocate(bytes, MemoryRole::communication, compute), shape, DType::f32};
      if (is_source) device_mesh.kernels().copy(compute, dict.state.at(key).tensors.at(kind).view(), whole);
      world.broadcast(compute, name.c_str(), whole, 0);
      tensor = StateTensor(whole);
    }
    state.tensors = parts_of(state.tensors, parameters.at(name), device_mesh);
  }
  return local;
}

}  // namespace mica::optim
