#include "mica/optim/state_dict.hpp"

#include <algorithm>
#include <functional>

#include "gradients.hpp"
#include "mica/comm/agree.hpp"
#include "mica/fsdp/gathered_unit.hpp"
#include "state_dict_text.hpp"

namespace mica::optim {
namespace {

using fsdp::StateTensor;

constexpr const char* kStep = "step";

/// Full name -> parameter, also of those outside units.
std::map<std::string_view, const nn::Parameter*> parameters_of(const Optimizer& optimizer) {
  std::map<std::string_view, const nn::Parameter*> found;
  for (const fsdp::Unit* unit : optimizer.root().units()) {
    if (!unit->storage()) continue;
    for (const fsdp::UnitParameter& p : unit->storage()->parameters()) found[p.full_name] = p.parameter;
  }
  for (const fsdp::UnitParameter& p : optimizer.root().ignored_parameters()) found[p.full_name] = p.parameter;
  return found;
}

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

/// The state shards of one unit, by kind. Empty while it has none.
std::map<std::string, TensorView> shards_of(const Optimizer& optimizer, const fsdp::UnitStorage* storage) {
  std::map<std::string, TensorView> found;
  for (const StateShard& shard : optimizer.state()) {
    if (shard.storage == storage) found[shard.kind] = shard.data;
  }
  return found;
}

/// What this rank has of one parameter, and its state by kind. Ignored parameters are whole everywhere.
struct Holding {
  std::string name;
  Shape shape;                         // of the whole parameter
  std::vector<fsdp::Piece::Run> runs;  // offsets into the state below
  std::int64_t numel = 0;
  std::map<std::string, TensorView> state;  // each [numel]
};

std::vector<Holding> holdings_of(const Optimizer& optimizer) {
  std::vector<Holding> holdings;
  for (const fsdp::ShardedParameter& p : optimizer.root().parameters()) {
    Holding& holding =
        holdings.emplace_back(Holding{.name = p.piece.parameter, .shape = p.piece.shape, .numel = p.piece.numel()});
    holding.runs = fsdp::runs_of_rank(*p.storage, p.storage->shard_rank()).at(p.index);
    for (fsdp::Piece::Run& run : holding.runs) run.offset -= p.piece.offset;
    for (const auto& [kind, shard] : shards_of(optimizer, p.storage)) {
      holding.state[kind] = shard.slice(p.piece.offset, p.piece.numel());
    }
  }
  for (const fsdp::UnitParameter& p : optimizer.root().ignored_parameters()) {
    const std::int64_t numel = p.parameter->shape.numel();
    Holding& holding = holdings.emplace_back(
        Holding{.name = p.full_name, .shape = p.parameter->shape, .runs = {{0, numel, 0}}, .numel = numel});
    for (const IgnoredState& each : optimizer.ignored_state()) {
      if (each.parameter == p.full_name) holding.state[each.kind] = each.data;
    }
  }
  return holdings;
}

/// Names instead of ids; of a full or local dict.
OptimStateDict by_name(const OptimStateDict& dict, const Optimizer& optimizer) {
  return rekey_optim_state_dict(dict, KeyKind::name, optimizer);
}

const std::string& name_of(const ParameterKey& key) { return std::get<std::string>(key); }

/// @param is_full  every tensor is whole; of a local dict a parameter without a piece here has none.
/// @throws CheckpointError naming what is not the optimizer's, missing, or of another shape.
void check_state(const OptimStateDict& dict, const Optimizer& optimizer, bool is_full) {
  const std::vector<std::string> kinds = optimizer.state_kinds();
  const auto parameters = parameters_of(optimizer);
  for (const auto& [key, state] : dict.state) {
    const std::string& name = name_of(key);
    const auto parameter = parameters.find(name);
    require<CheckpointError>(parameter != parameters.end(),
                             "the state dict has state of {}, which is no parameter of the optimizer", name);
    for (const auto& [kind, tensor] : state.tensors) {
      require<CheckpointError>(std::ranges::find(kinds, kind) != kinds.end(),
                               "the state dict has {} of parameter {}, but {} keeps no such state: it is of another optimizer",
                               kind, name, optimizer.name());
      const Shape& shape = parameter->second->shape;
      require<CheckpointError>(!is_full || (tensor.shape() == shape && tensor.dtype() == DType::f32),
                               "{} of parameter {} is {} {} in the state dict, expected fp32 {}", kind, name,
                               dtype_name(tensor.dtype()), tensor.shape().to_string(), shape.to_string());
    }
    for (const std::string& kind : kinds) {
      require<CheckpointError>((!is_full && state.tensors.empty()) || state.tensors.contains(kind),
                               "the state dict has no {} of parameter {}", kind, name);
    }
    require<CheckpointError>(!optimizer.counts_steps() || state.scalars.contains(kStep),
                             "the state dict has no step of parameter {}, which {} needs", name, optimizer.name());
    const double steps = optimizer.counts_steps() ? state.scalars.at(kStep) : 1;
    require<CheckpointError>(steps >= 1 && steps == static_cast<double>(static_cast<std::int64_t>(steps)),
                             "the state dict has step {} of parameter {}, expected a whole number from 1", steps, name);
  }
}

/// The elements of a whole tensor that this rank holds, in the order of its state.
StateTensor part_of(const StateTensor& whole, const Holding& holding, const fsdp::DeviceMesh& device_mesh) {
  StateTensor part = StateTensor::on_host(Shape{holding.numel}, DType::f32);
  for (const fsdp::Piece::Run& run : holding.runs) {
    device_mesh.kernels().copy(device_mesh.compute(), whole.view().slice(run.begin, run.numel()),
                               part.view().slice(run.offset, run.numel()));
  }
  return part;
}

/// This rank's pieces of whole tensors of one parameter; none if it has no piece.
fsdp::StateDict pieces_of(const fsdp::StateDict& whole, std::string_view name, const std::vector<Holding>& holdings,
                          const fsdp::DeviceMesh& device_mesh) {
  fsdp::StateDict pieces;
  for (const Holding& holding : holdings) {
    if (holding.name != name) continue;
    for (const auto& [kind, tensor] : whole) pieces[kind] = part_of(tensor, holding, device_mesh);
  }
  device_mesh.compute().synchronize();
  return pieces;
}

/// Rows [begin, end) along dim 0.
struct Rows {
  std::int64_t begin = 0, end = 0;
};

/// How many rows a shard rank has, before the parameter ends.
std::int64_t chunk_rows(const Shape& shape, const Mesh& mesh) { return (shape[0] + mesh.shard_size() - 1) / mesh.shard_size(); }

Rows rows_of_rank(const Shape& shape, const Mesh& mesh) {
  const std::int64_t chunk = chunk_rows(shape, mesh);
  const std::int64_t begin = std::min(shape[0], chunk * mesh.shard_rank());
  return {begin, std::min(shape[0], begin + chunk)};
}

Shape with_rows(Shape shape, std::int64_t rows) {
  std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[0] = rows;
  return Shape(dims);
}

std::int64_t row_numel(const Shape& shape) { return shape[0] == 0 ? 0 : shape.numel() / shape[0]; }

/// Gathers the state unit by unit and keeps the rows that `rows_of` wants of each parameter.
OptimStateDict gathered_state(const Optimizer& optimizer, bool keeps, const std::function<Rows(const Shape&)>& rows_of) {
  const fsdp::Root& root = optimizer.root();
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  OptimStateDict dict;
  const auto add_rows = [&](const std::string& name, const std::string& kind, const nn::Parameter& parameter,
                            auto&& copy) {
    const Shape& shape = parameter.shape;
    const Rows rows = rows_of(shape);
    StateTensor tensor = StateTensor::on_host(with_rows(shape, rows.end - rows.begin), DType::f32);
    if (tensor.numel() > 0) copy(rows, row_numel(shape), tensor.view().reshaped(Shape{tensor.numel()}));
    tensor.set_part_of(shape, rows.begin);
    ParameterState& state = dict.state[name];
    state.tensors[kind] = std::move(tensor);
    if (optimizer.counts_steps()) state.scalars[kStep] = static_cast<double>(optimizer.steps_of(name));
  };
  for (const fsdp::Unit* unit : root.units()) {
    const fsdp::UnitStorage* storage = unit->storage();
    if (!storage) continue;
    for (const auto& [kind, shard] : shards_of(optimizer, storage)) {
      const fsdp::GatheredUnit gathered(*unit, shard);
      for (std::size_t i = 0; keeps && i < storage->parameters().size(); ++i) {
        const auto& [name, parameter] = storage->parameters()[i];
        if (!has_state(optimizer, name)) continue;
        add_rows(name, kind, *parameter, [&](Rows rows, std::int64_t row, TensorView dst) {
          gathered.copy_range(i, rows.begin * row, rows.end * row, dst);
        });
      }
    }
  }
  for (const IgnoredState& each : optimizer.ignored_state()) {
    if (!keeps || !has_state(optimizer, each.parameter)) continue;
    add_rows(each.parameter, each.kind, *parameters_of(optimizer).at(each.parameter),
             [&](Rows rows, std::int64_t row, TensorView dst) {
               device_mesh.kernels().copy(device_mesh.compute(),
                                          each.data.slice(rows.begin * row, (rows.end - rows.begin) * row), dst);
             });
  }
  if (keeps) dict.groups = groups_of(optimizer);
  device_mesh.compute().synchronize();
  return dict;
}

}  // namespace

OptimStateDict full_optim_state_dict(const Optimizer& optimizer, bool rank0_only) {
  require_idle(optimizer.root(), "full_optim_state_dict");
  const bool keeps = !rank0_only || optimizer.root().device_mesh().mesh().rank() == 0;
  return gathered_state(optimizer, keeps, [](const Shape& shape) { return Rows{0, shape[0]}; });
}

OptimStateDict sharded_optim_state_dict(const Optimizer& optimizer) {
  require_idle(optimizer.root(), "sharded_optim_state_dict");
  const Mesh& mesh = optimizer.root().device_mesh().mesh();
  return gathered_state(optimizer, true, [&](const Shape& shape) { return rows_of_rank(shape, mesh); });
}

OptimStateDict local_from_sharded_optim_state_dict(const OptimStateDict& sharded, const Optimizer& optimizer) {
  const fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  const Mesh& mesh = device_mesh.mesh();
  Stream& compute = device_mesh.compute();
  const auto parameters = parameters_of(optimizer);
  OptimStateDict local;
  agree(mesh.shard(), compute, "local_from_sharded_optim_state_dict", [&] {
    local = by_name(sharded, optimizer);
    check_state(local, optimizer, false);
    for (const auto& [key, state] : local.state) {
      const Shape& shape = parameters.at(name_of(key))->shape;
      const Rows rows = rows_of_rank(shape, mesh);
      for (const auto& [kind, tensor] : state.tensors) {
        require<CheckpointError>(tensor.global_shape() == shape && tensor.row_begin() == rows.begin &&
                                     tensor.shape() == with_rows(shape, rows.end - rows.begin),
                                 "{} of parameter {} has rows {} in the state dict, from row {} of {}, expected rows [{}, {}) of {}",
                                 kind, name_of(key), tensor.shape().to_string(), tensor.row_begin(),
                                 tensor.global_shape().to_string(), rows.begin, rows.end, shape.to_string());
      }
    }
  });
  const std::vector<Holding> holdings = holdings_of(optimizer);
  for (auto& [key, state] : local.state) {
    const Shape& shape = parameters.at(name_of(key))->shape;
    // Every rank sends as many rows, so that they lie side by side behind each other; what follows the last is dropped.
    const std::int64_t numel = chunk_rows(shape, mesh) * row_numel(shape);
    fsdp::StateDict whole;
    for (const auto& [kind, tensor] : state.tensors) {
      const Shape padded{numel * mesh.shard_size()};
      const Tensor all{device_mesh.pool().allocate(padded.numel() * dtype_bytes(DType::f32), MemoryRole::communication, compute),
                       padded, DType::f32};
      const TensorView mine = all.view().slice(numel * mesh.shard_rank(), numel);
      device_mesh.kernels().fill(compute, mine, 0.0);
      if (tensor.numel() > 0) device_mesh.kernels().copy(compute, tensor.view(), mine.slice(0, tensor.numel()));
      mesh.shard().all_gather(compute, name_of(key).c_str(), mine, all);
      whole[kind] = StateTensor(all);
    }
    state.tensors = pieces_of(whole, name_of(key), holdings, device_mesh);
  }
  return local;
}

OptimStateDict shard_full_optim_state_dict(const OptimStateDict& full, const Optimizer& optimizer) {
  const OptimStateDict named = by_name(full, optimizer);
  check_state(named, optimizer, true);
  OptimStateDict local{.state = {}, .groups = named.groups};
  const std::vector<Holding> holdings = holdings_of(optimizer);
  for (const auto& [key, state] : named.state) {
    local.state[key] = {pieces_of(state.tensors, name_of(key), holdings, optimizer.root().device_mesh()),
                        state.scalars};
  }
  return local;
}

OptimStateDict scatter_full_optim_state_dict(const OptimStateDict* full, const Optimizer& optimizer) {
  const fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  ProcessGroup& world = device_mesh.metrics_group();
  Stream& compute = device_mesh.compute();
  const bool is_source = world.rank() == 0;
  const auto parameters = parameters_of(optimizer);
  OptimStateDict dict;
  agree(world, compute, "scatter_full_optim_state_dict", [&] {
    if (!is_source) return;
    require(full != nullptr, "scatter_full_optim_state_dict has no full state here: only rank 0's is used, give it there");
    dict = by_name(*full, optimizer);
    check_state(dict, optimizer, true);
  });
  const std::string text = gather_strings(world, compute, "optimizer state", is_source ? text_of(dict) : "").front();
  OptimStateDict local = dict_without_tensors(text);
  const std::vector<Holding> holdings = holdings_of(optimizer);
  for (auto& [key, state] : local.state) {
    const std::string& name = name_of(key);
    const Shape& shape = parameters.at(name)->shape;
    const std::int64_t bytes = shape.numel() * dtype_bytes(DType::f32);
    for (auto& [kind, tensor] : state.tensors) {
      const Tensor whole{device_mesh.pool().allocate(bytes, MemoryRole::communication, compute), shape, DType::f32};
      if (is_source) device_mesh.kernels().copy(compute, dict.state.at(key).tensors.at(kind).view(), whole);
      world.broadcast(compute, name.c_str(), whole, 0);
      tensor = StateTensor(whole);
    }
    state.tensors = pieces_of(state.tensors, name, holdings, device_mesh);
  }
  return local;
}

// --- loading ---------------------------------------------------------------------------------------------------------

namespace {

/// What is written where, once everything has been checked.
struct Transfer {
  StateTensor from;
  TensorView to;
};

/// @throws CheckpointError where a kind is missing or has neither the piece's size nor the parameter's.
std::vector<Transfer> transfers_into(const Optimizer& optimizer, const OptimStateDict& dict) {
  const fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  std::vector<Transfer> transfers;
  for (const Holding& holding : holdings_of(optimizer)) {
    const auto found = dict.state.find(holding.name);
    if (found == dict.state.end()) continue;
    for (const auto& [kind, state] : holding.state) {
      const auto tensor = found->second.tensors.find(kind);
      require<CheckpointError>(tensor != found->second.tensors.end(),
                               "the state dict has no {} of parameter {} on this rank", kind, holding.name);
      const bool is_whole = tensor->second.shape() == holding.shape;
      require<CheckpointError>(
          is_whole || tensor->second.shape() == Shape{holding.numel},
          "{} of parameter {} has shape {} in the state dict, expected this rank's {} elements or {}", kind,
          holding.name, tensor->second.shape().to_string(), holding.numel, holding.shape.to_string());
      transfers.push_back({is_whole ? part_of(tensor->second, holding, device_mesh) : tensor->second, state});
    }
  }
  return transfers;
}

}  // namespace

void load_optim_state_dict(Optimizer& optimizer, const OptimStateDict& dict) {
  require_idle(optimizer.root(), "load_optim_state_dict");
  const fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  const OptimStateDict named = by_name(dict, optimizer);
  check_state(named, optimizer, false);
  optimizer.allocate_state();
  const std::vector<Transfer> transfers = transfers_into(optimizer, named);
  for (const StateShard& shard : optimizer.state()) device_mesh.kernels().fill(device_mesh.compute(), shard.data, 0.0);
  for (const IgnoredState& each : optimizer.ignored_state())
    device_mesh.kernels().fill(device_mesh.compute(), each.data, 0.0);
  for (const Transfer& t : transfers) device_mesh.kernels().copy(device_mesh.compute(), t.from.view(), t.to);
  std::int64_t most = 0;
  std::map<std::string, std::int64_t> steps;
  for (const auto& [name, parameter] : parameters_of(optimizer)) {
    const auto found = named.state.find(std::string(name));
    const double count = found == named.state.end() ? 0 : optimizer.counts_steps() ? found->second.scalars.at(kStep) : 1;
    steps[std::string(name)] = static_cast<std::int64_t>(count);
    most = std::max(most, static_cast<std::int64_t>(count));
  }
  optimizer.set_num_steps(most);
  optimizer.set_parameter_steps(steps);
  device_mesh.compute().synchronize();
}

// --- keys ------------------------------------------------------------------------------------------------------------

namespace {

bool is_name(const ParameterKey& key) { return std::holds_alternative<std::string>(key); }

std::vector<const ParameterKey*> all_keys(const OptimStateDict& dict) {
  std::vector<const ParameterKey*> keys;
  for (const auto& [key, state] : dict.state) keys.push_back(&key);
  for (const OptimStateDict::Group& group : dict.groups) {
    for (const ParameterKey& key : group.parameters) keys.push_back(&key);
  }
  return keys;
}

/// What a key is called in the other kind. Ids count through the groups.
std::map<ParameterKey, ParameterKey> other_names(const Optimizer& optimizer, KeyKind wanted) {
  std::map<ParameterKey, ParameterKey> names;
  std::int64_t id = 0;
  for (const ParamGroup& group : optimizer.groups()) {
    for (const std::string& name : group.parameters) {
      names.emplace(wanted == KeyKind::id ? ParameterKey(name) : ParameterKey(id), wanted == KeyKind::id ? ParameterKey(id) : ParameterKey(name));
      ++id;
    }
  }
  return names;
}

}  // namespace

OptimStateDict rekey_optim_state_dict(const OptimStateDict& dict, KeyKind kind, const Optimizer& optimizer) {
  const std::vector<const ParameterKey*> keys = all_keys(dict);
  const auto num_names = std::ranges::count_if(keys, [](const ParameterKey* key) { return is_name(*key); });
  require<ConfigError>(num_names == 0 || num_names == static_cast<std::ptrdiff_t>(keys.size()),
                       "the optimizer state dict has {} keys that are names and {} that are ids: expected one kind", num_names,
                       static_cast<std::ptrdiff_t>(keys.size()) - num_names);
  if (keys.empty() || (num_names > 0) == (kind == KeyKind::name)) return dict;
  const std::map<ParameterKey, ParameterKey> names = other_names(optimizer, kind);
  OptimStateDict result;
  for (const auto& [key, state] : dict.state) {
    if (const auto found = names.find(key); found != names.end()) result.state[found->second] = state;
  }
  for (const OptimStateDict::Group& group : dict.groups) {
    OptimStateDict::Group& renamed = result.groups.emplace_back(OptimStateDict::Group{{}, group.options});
    for (const ParameterKey& key : group.parameters) {
      if (const auto found = names.find(key); found != names.end()) renamed.parameters.push_back(found->second);
    }
    std::ranges::sort(renamed.parameters);
  }
  return result;
}

}  // namespace mica::optim
