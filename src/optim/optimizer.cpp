// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "mica/core/error.hpp"
#include "mica/tensor/fetch.hpp"

namespace mica::optim {
namespace {

/// Elements of a low-precision gradient that are widened at a time.
constexpr std::int64_t kWidenedNumel = 1 << 16;

/// What a step on the host needs where parameters are offloaded from a GPU: scalars and workspace in the host's memory.
struct ArgsInTier {
  ArgsInTier(const fsdp::DeviceMesh& device_mesh, const StepArgs& on_device, Tensor space) : args(on_device), workspace(std::move(space)) {
    Pool& pool = *device_mesh.offload().pool;
    Stream& stream = *device_mesh.offload().stream;
    for (ConstTensorView* scalar : {&args.grad_scale, &args.skip, &args.skipped_steps}) {
      if (!*scalar) continue;
      scalars.emplace_back(pool.allocate(dtype_bytes(DType::f32), MemoryRole::workspace, stream), Shape{1}, DType::f32);
      device_mesh.kernels().copy(device_mesh.compute(), *scalar, scalars.back());
      *scalar = scalars.back();
    }
  }
  StepArgs args;
  std::vector<Tensor> scalars;
  Tensor workspace;
};

}  // namespace

Optimizer::Optimizer(fsdp::Root& root, double weight_decay, std::vector<ParamGroup> groups, MomentPrecision precision)
    : StepParty(root.transaction()), root_(root), weight_decay_(weight_decay), precision_(precision), groups_(std::move(groups)) {
  require_precision_on(root.device_mesh().device(), precision);
  add_units();
  assign_groups();
}

void Optimizer::add_units() {
  for (const fsdp::Unit* unit : root_.units()) {
    if (!unit->storage()) continue;
    const std::span<const fsdp::Piece> pieces = root_.pieces_of(*unit);
    UnitState& state =
        units_.emplace_back(UnitState{.storage = unit->storage(), .members = {}, .pieces = {pieces.begin(), pieces.end()}, .state = {}});
    for (const fsdp::UnitParameter& p : unit->storage()->parameters()) {
      state.members.push_back({.parameter = p.parameter, .name = p.full_name});
    }
  }
  for (const fsdp::UnitParameter& p : root_.ignored_parameters()) {
    units_.push_back({.storage = nullptr,
                      .members = {{.parameter = p.parameter, .name = p.full_name}},
                      .pieces = {fsdp::make_piece(0, p.parameter->shape, 0, p.parameter->shape.numel(), 0)},
                      .state = {}});
  }
}

void Optimizer::assign_groups() {
  const bool takes_all = groups_.empty();
  if (takes_all) groups_.emplace_back();
  std::unordered_map<std::string_view, Member*> members;
  for (UnitState& unit : units_) {
    for (Member& member : unit.members) {
      members[member.name] = &member;
      if (takes_all) groups_[0].parameters.push_back(member.name);
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const ParamGroup& group = groups_[g];
    const auto is_beta = [](std::optional<double> beta) { return !beta || (*beta >= 0 && *beta < 1); };
    require<ConfigError>(std::isfinite(group.lr_factor) && group.lr_factor >= 0,
                         "parameter group {}: lr_factor is {}, expected a number >= 0", g, group.lr_factor);
    require<ConfigError>(group.weight_decay.value_or(0) >= 0 && group.weight_decay.value_or(0) < 1e6,
                         "parameter group {}: weight_decay is {}, expected a number >= 0", g, group.weight_decay.value_or(0));
    require<ConfigError>(is_beta(group.beta1) && is_beta(group.beta2),
                         "parameter group {}: beta1 is {} and beta2 {}, expected 0 <= beta < 1", g, group.beta1.value_or(0),
                         group.beta2.value_or(0));
    for (const std::string& name : group.parameters) {
      const auto found = members.find(name);
      require<ConfigError>(found != members.end(), "parameter group {} names {}, which is no parameter of the model", g, name);
      require<ConfigError>(found->second->group < 0, "parameter {} is in the groups {} and {}: name it once", name, found->second->group,
                           g);
      found->second->group = static_cast<int>(g);
    }
  }
}

// --- the step ------------------------------------------------------------------------------------------------------

void Optimizer::step(const StepArgs& args) {
  require(root_.state() == fsdp::TrainingState::idle, "the optimizer is stepped while the root is {}: step it between passes",
          fsdp::training_state_name(root_.state()));
  check_args(args);
  // Everything that can fail is done before anything is changed.
  for (const UnitState& unit : units_) {
    if (!unit.storage) check_ignored(unit);
  }
  transaction().before_change(*this);
  for (UnitState& unit : units_) {
    if (any_takes_part(unit)) allocate(unit);
  }
  Stream& compute = device_mesh().compute();
  const Tensor workspace = allocate_workspace(device_mesh().pool(), compute);
  std::optional<ArgsInTier> in_tier;
  if (std::ranges::any_of(units_, [&](const UnitState& unit) { return &stream_of(unit) != &compute; })) {
    const fsdp::OffloadTier& tier = device_mesh().offload();
    in_tier.emplace(device_mesh(), args, allocate_workspace(*tier.pool, *tier.stream));
  }
  if (args.skipped_steps && (!skipped_taken_off_ || (num_steps_ > 0 && are_others_than_in_last_step()))) {
    take_off_skipped_steps(static_cast<std::int64_t>(fetch_scalar(device_mesh().kernels(), compute, args.skipped_steps)));
  }
  root_.reshard();
  if (in_tier) compute.synchronize();  // the host reads scalars, and writes masters that casts have read
  ++num_steps_;
  std::vector<RunArgs> runs;
  for (UnitState& unit : units_) {
    Stream& stream = stream_of(unit);
    if (&stream == &compute) {
      add_runs(unit, args, workspace, compute, runs);
    } else {
      step_unit(unit, in_tier->args, in_tier->workspace, stream);
    }
  }
  if (!runs.empty()) step_runs(runs, args);
  transaction().enqueued(compute.record());
}

Stream& Optimizer::stream_of(const UnitState& unit) const {
  const fsdp::OffloadTier& tier = device_mesh().offload();
  return unit.storage && &unit.storage->master_pool() == tier.pool.get() ? *tier.stream : device_mesh().compute();
}

Kernels& Optimizer::kernels_on(const Stream& stream) const {
  const fsdp::OffloadTier& tier = device_mesh().offload();
  return &stream == tier.stream.get() ? *tier.kernels : device_mesh().kernels();
}

void Optimizer::check_args(const StepArgs& args) const {
  require<ConfigError>(std::isfinite(args.lr) && args.lr >= 0, "the learning rate is {}, expected a number >= 0", args.lr);
  check(args);
}

bool Optimizer::takes_part(const UnitState& unit, std::size_t member) {
  return unit.members[member].is_stepped() && has_grad(unit, member);
}

bool Optimizer::any_takes_part(const UnitState& unit) {
  for (std::size_t i = 0; i < unit.members.size(); ++i) {
    if (takes_part(unit, i)) return true;
  }
  return false;
}

bool Optimizer::has_grad(const UnitState& unit, std::size_t member) {
  if (unit.storage) return unit.storage->has_grad(member);
  const nn::Parameter& parameter = *unit.members[member].parameter;
  return parameter.grad && parameter.grad_written;
}

TensorView Optimizer::write_master(const UnitState& unit, Stream& stream) {
  return unit.storage ? unit.storage->write_master(stream) : unit.members[0].parameter->data.reshaped(Shape{numel_of(unit)});
}

ConstTensorView Optimizer::grad_of(const UnitState& unit) {
  return unit.storage ? unit.storage->sharded_grad() : unit.members[0].parameter->grad.reshaped(Shape{numel_of(unit)});
}

std::int64_t Optimizer::numel_of(const UnitState& unit) {
  return unit.storage ? unit.storage->layout().shard_numel() : unit.members[0].parameter->shape.numel();
}

void Optimizer::check_ignored(const UnitState& unit) {
  const nn::Parameter& p = *unit.members[0].parameter;
  require<ConfigError>(!takes_part(unit, 0) || (p.data && p.data.dtype == DType::f32 && p.grad.dtype == DType::f32),
                       "the ignored parameter {} has {} data and a {} gradient, expected fp32 for the optimizer: keep a fp32 "
                       "copy, or leave it out of the parameter groups",
                       unit.members[0].name, dtype_name(p.data.dtype), dtype_name(p.grad.dtype));
}

bool Optimizer::are_others_than_in_last_step() const {
  for (const UnitState& unit : units_) {
    for (std::size_t i = 0; i < unit.members.size(); ++i) {
      if (unit.members[i].took_part != takes_part(unit, i)) return true;
    }
  }
  return false;
}

std::int64_t Optimizer::workspace_numel() const {
  const bool widens = std::ranges::any_of(root_.units(), [](const fsdp::Unit* u) { return u->options().grad_dtype() != DType::f32; });
  return run_workspace_numel() + (widens ? kWidenedNumel : 0);
}

Tensor Optimizer::allocate_workspace(Pool& pool, Stream& stream) const {
  const std::int64_t numel = workspace_numel();
  return {pool.allocate(numel * dtype_bytes(DType::f32), MemoryRole::workspace, stream), Shape{numel}, DType::f32};
}

void Optimizer::step_unit(UnitState& unit, const StepArgs& args, TensorView workspace, Stream& stream) {
  std::vector<RunArgs> runs;
  add_runs(unit, args, workspace, stream, runs);
  if (!runs.empty()) step_runs(runs, args);
}

void Optimizer::add_runs(UnitState& unit, const StepArgs& args, TensorView workspace, Stream& stream, std::vector<RunArgs>& runs) {
  for (std::size_t i = 0; i < unit.members.size(); ++i) {
    unit.members[i].took_part = takes_part(unit, i);
    unit.members[i].steps += unit.members[i].took_part ? 1 : 0;
  }
  if (std::ranges::none_of(unit.members, &Member::took_part)) return;
  const TensorView master = write_master(unit, stream);
  for (std::size_t begin = 0, end = 0; begin < unit.pieces.size(); begin = end) {
    const fsdp::Piece& first = unit.pieces[begin];
    const Member& member = unit.members[first.parameter];
    std::int64_t numel = first.numel();
    for (end = begin + 1; end < unit.pieces.size(); ++end) {
      const fsdp::Piece& next = unit.pieces[end];
      if (next.offset != first.offset + numel || !are_stepped_alike(member, unit.members[next.parameter])) break;
      numel += next.numel();
    }
    if (!member.took_part) continue;
    const ParamGroup& group = groups_[static_cast<std::size_t>(member.group)];
    RunArgs run{.param = master.slice(first.offset, numel),
                .grad = grad_of(unit).slice(first.offset, numel),
                .state = {},
                .workspace = workspace.slice(0, run_workspace_numel()),
                .group = &group,
                .lr = args.lr * group.lr_factor,
                .weight_decay = decay_of(member),
                .step = member.steps + (args.skipped_steps ? skipped_taken_off_.value() : 0),
                .is_first = member.steps == 1,
                .stream = &stream,
                .kernels = &kernels_on(stream)};
    for (const Tensor& state : unit.state) run.state.push_back(state.view().slice(first.offset, numel));
    if (run.grad.dtype == DType::f32) {
      runs.push_back(std::move(run));
    } else {
      step_low_precision_run(run, args, workspace.slice(run_workspace_numel(), kWidenedNumel));
    }
  }
}

bool Optimizer::are_stepped_alike(const Member& x, const Member& y) const {
  return x.took_part == y.took_part && x.group == y.group && x.steps == y.steps && decay_of(x) == decay_of(y);
}

double Optimizer::decay_of(const Member& member) const {
  if (member.group < 0) return 0;
  const double usual = member.parameter->weight_decay ? weight_decay_ : 0;
  return groups_[static_cast<std::size_t>(member.group)].weight_decay.value_or(usual);
}

void Optimizer::step_low_precision_run(const RunArgs& run, const StepArgs& args, TensorView wide) {
  for (std::int64_t begin = 0; begin < run.param.numel(); begin += kWidenedNumel) {
    const std::int64_t numel = std::min(kWidenedNumel, run.param.numel() - begin);
    RunArgs part = run;
    part.param = run.param.slice(begin, numel);
    part.grad = wide.slice(0, numel);
    for (TensorView& state : part.state) state = state.slice(begin, numel);
    run.kernels->copy(*run.stream, run.grad.slice(begin, numel), wide.slice(0, numel));
    step_runs({&part, 1}, args);
  }
}

// --- state ---------------------------------------------------------------------------------------------------------

void Optimizer::allocate_state() {
  for (UnitState& unit : units_) {
    if (std::ranges::any_of(unit.members, &Member::is_stepped)) allocate(unit);
  }
}

void Optimizer::allocate(UnitState& unit) {
  if (unit.is_allocated) return;
  Stream& stream = stream_of(unit);
  std::vector<Tensor> state;
  for (const DType dtype : state_dtypes()) {
    Pool& pool = unit.storage ? unit.storage->master_pool() : device_mesh().pool();
    const std::int64_t numel = numel_of(unit);
    state.emplace_back(pool.allocate(numel * dtype_bytes(dtype), MemoryRole::optimizer, stream), Shape{numel}, dtype);
  }
  unit.state = std::move(state);
  unit.is_allocated = true;
  for (const Tensor& each : unit.state) kernels_on(stream).fill(stream, each, 0.0);
}

std::vector<StateShard> Optimizer::state() const {
  const std::vector<std::string> kinds = state_kinds();
  std::vector<StateShard> found;
  for (const UnitState& unit : units_) {
    for (std::size_t kind = 0; unit.storage && kind < unit.state.size(); ++kind) {
      found.push_back({kinds[kind], unit.storage, unit.state[kind]});
    }
  }
  return found;
}

std::vector<IgnoredState> Optimizer::ignored_state() const {
  const std::vector<std::string> kinds = state_kinds();
  std::vector<IgnoredState> found;
  for (const UnitState& unit : units_) {
    for (std::size_t kind = 0; !unit.storage && kind < unit.state.size(); ++kind) {
      found.push_back({kinds[kind], unit.members[0].name, unit.state[kind]});
    }
  }
  return found;
}

std::set<std::string> Optimizer::parameters_with_state() const {
  std::set<std::string> names;
  for (const StateShard& shard : state()) {
    for (const fsdp::UnitParameter& p : shard.storage->parameters()) names.insert(p.full_name);
  }
  for (const IgnoredState& each : ignored_state()) names.insert(each.parameter);
  return names;
}

std::vector<DType> Optimizer::state_dtypes() const {
  std::vector<DType> dtypes;
  for (const std::string& kind : state_kinds()) dtypes.push_back(moment_dtype(precision_, kind));
  return dtypes;
}

}  // namespace mica::optim
