// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/unit_storage.hpp"

#include <algorithm>
#include <utility>

#include "mica/comm/gpu_groups.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/fsdp/name_patterns.hpp"
#include "mica/fsdp/per_parameter_layout.hpp"
#include "mica/nn/init.hpp"

#include "hooked_all_gather.hpp"

namespace mica::fsdp {
namespace {

std::vector<ParameterSpec> specs_of(const std::vector<UnitParameter>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const UnitParameter& p : parameters) specs.push_back({p.full_name, p.parameter->shape});
  return specs;
}

std::unique_ptr<ShardLayout> make_layout(const std::vector<UnitParameter>& parameters, int shard_size, const Options& options) {
  std::vector<ParameterSpec> specs = specs_of(parameters);
  if (options.sharding == Sharding::flat || shard_size == 1) {  // one rank holds everything
    return std::make_unique<FlatLayout>(std::move(specs), shard_size, kUnitAlignmentNumel);
  }
  std::vector<int> dims;
  for (const ParameterSpec& p : specs) {
    const auto rule = std::ranges::find_if(options.shard_dims, [&](const ShardDim& r) { return matches_pattern(p.name, r.pattern); });
    dims.push_back(rule == options.shard_dims.end() ? 0 : rule->dim);
  }
  return std::make_unique<PerParameterLayout>(std::move(specs), dims, shard_size, kUnitAlignmentNumel);
}

bool cuts_rows_only(const ShardLayout& layout) {
  const auto* per_parameter = dynamic_cast<const PerParameterLayout*>(&layout);
  if (!per_parameter) return true;
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    if (per_parameter->cut(i).dim != 0) return false;
  }
  return true;
}

/// The number before the first round of an epoch of the mesh: higher than any round of an earlier one.
std::uint64_t begin_of_epoch(const DeviceMesh& device_mesh) { return static_cast<std::uint64_t>(device_mesh.mesh().epoch()) << 40; }

}  // namespace

std::string_view shard_state_name(ShardState state) {
  switch (state) {
    case ShardState::sharded:
      return "sharded";
    case ShardState::sharded_post_forward:
      return "sharded among neighbours after forward";
    case ShardState::unsharded:
      return "unsharded";
  }
  return "?";
}

UnitStorage::UnitStorage(std::string name, std::vector<UnitParameter> parameters, DeviceMesh& device_mesh, const Options& options,
                         const RootOptions& of_root, bool keeps_for_backward)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      device_mesh_(device_mesh),
      param_dtype_(options.param_dtype()),
      reduce_dtype_(options.reduce_dtype()),
      can_share_masters_(options.can_share_masters()),
      can_share_casts_(keeps_for_backward && options.can_share_casts()),
      can_share_grads_(!of_root.deterministic && options.can_share_grads(device_mesh.geometry().replicas)),
      keeps_low_precision_grads_(options.mixed_precision.keep_low_precision_grads),
      use_orig_params_(of_root.use_orig_params),
      has_grads_(parameters_.size(), false),
      offload_(options.cpu_offload),
      layout_(make_layout(parameters_, options.strategy == Strategy::no_shard ? 1 : device_mesh.geometry().shard_size, options)),
      shard_rank_(layout_->shard_size() == 1 ? 0 : device_mesh.mesh().shard_rank()),
      reduction_(of_root.deterministic ? deterministic_reduction()
                 : options.reduction   ? *options.reduction
                                       : default_reduction()) {
  connect_groups({&all_reduce_group()});
  const int num_neighbours = options.reshard_after_forward_ranks;
  if (num_neighbours == 0 || layout_->shard_size() == 1) return;
  require<ConfigError>(cuts_rows_only(*layout_), "unit {}: resharding over {} ranks after forward needs every parameter sharded on dim 0",
                       name_, num_neighbours);
  num_neighbours_ = device_mesh.neighbour_group(num_neighbours).num_ranks();
}

UnitStorage::~UnitStorage() {
  // A step that was never ended may still be running.
  for (Stream* stream : device_mesh_.streams().all()) {
    const Event last_use = stream->record();
    for (StoredTensor* each : {&master_, &unsharded_, &post_forward_, &unsharded_grad_, &sharded_grad_}) each->used_until(last_use);
    for (SharedParts* each : {&parts_, &grad_parts_}) {
      if (each->memory) each->memory.used_until(last_use);
    }
  }
  drop_arrays();
}

bool UnitStorage::is_trainable() const {
  return std::ranges::any_of(parameters_, [](const UnitParameter& p) { return p.parameter->requires_grad; });
}

// --- the master ----------------------------------------------------------------------------------------------------

bool UnitStorage::is_group_sharing() const {
  return layout_->shard_size() > 1 && layout_->shard_numel() > 0 && device_mesh_.mesh().shard().shares_memory();
}

bool UnitStorage::shares_masters() const { return can_share_masters_ && is_group_sharing(); }

bool UnitStorage::shares_casts() const { return can_share_casts_ && is_group_sharing(); }

std::int64_t UnitStorage::shared_bytes() const {
  const std::int64_t parameters = shares_masters() || shares_casts() ? dtype_bytes(param_dtype_) : 0;
  return layout_->shard_numel() * (parameters + (shares_grads() ? dtype_bytes(DType::f32) : 0));
}

void UnitStorage::allocate_master() {
  Stream& compute = device_mesh_.compute();
  ProcessGroup& group = device_mesh_.mesh().shard();
  const std::int64_t numel = layout_->shard_numel();
  if (shares_masters()) {
    parts_ = group.allocate_parts(master_pool(), numel, DType::f32, MemoryRole::sharded_param, compute);
    master_ = {std::move(parts_.memory), numel, DType::f32};
    return;
  }
  if (shares_casts()) parts_ = group.allocate_parts(device_mesh_.pool(), numel, param_dtype_, MemoryRole::unsharded_param, compute);
  master_ = {group.allocate(master_pool(), numel * dtype_bytes(DType::f32), MemoryRole::sharded_param, compute), numel, DType::f32};
}

void UnitStorage::initialize_to_zeros() {
  if (!is_initialized()) allocate_master();
  Stream& compute = device_mesh_.compute();
  device_mesh_.kernels().fill(compute, write_master(compute), 0.0);
}

void UnitStorage::initialize(std::uint64_t seed) {
  initialize_to_zeros();
  Stream& compute = device_mesh_.compute();
  const TensorView master = write_master(compute);
  for (const Piece& piece : layout_->pieces(shard_rank_)) {
    const UnitParameter& p = parameters_[piece.parameter];
    for (std::int64_t i = 0; i < piece.num_runs(); ++i) {
      const Run run = piece.run(i);
      nn::fill_initial(device_mesh_.kernels(), compute, *p.parameter, p.full_name, seed, run.begin, master.slice(run.offset, run.numel()));
    }
  }
}

std::uint64_t UnitStorage::last_round() const { return std::max(round_, begin_of_epoch(device_mesh_)); }

TensorView UnitStorage::write_master(Stream& s) const {
  require(!is_unsharded() || aliases_master(unsharded_.dtype()),
          "the sharded parameters of unit {} cannot be written while it is unsharded: reshard it first", name_);
  // Before an epoch's first round there are no readers to wait for.
  if (has_shared_masters() && last_round() != begin_of_epoch(device_mesh_)) {
    // The group whose other collectives are on that stream.
    ProcessGroup& group = &s == device_mesh_.streams().post_backward.get() ? device_mesh_.reduce_group()
                          : &s == device_mesh_.streams().all_reduce.get()  ? all_reduce_group()
                                                                           : device_mesh_.shard_norm_group();
    group.wait_for_released(s, name_.c_str(), parts_, last_round());
  }
  return master_.view();
}

TensorView UnitStorage::write_master() const {
  Stream& compute = device_mesh_.compute();
  const TensorView master = write_master(compute);
  if (has_shared_masters()) compute.record().wait_on_host();
  return master;
}

void UnitStorage::set_all_gather_hooks(const nn::Parameter& parameter, AllGatherHooks hooks) {
  const auto found = std::ranges::find(parameters_, &parameter, &UnitParameter::parameter);
  require(found != parameters_.end(), "unit {} has no parameter '{}' {}", name_, parameter.name, parameter.shape.to_string());
  const std::string& full_name = found->full_name;
  require<ConfigError>(hooks.pre && hooks.post, "parameter {} has a {} all-gather hook alone: hooks come as a pair", full_name,
                       hooks.pre ? "pre" : "post");
  require<ConfigError>(!keeps_part_after_forward(),
                       "parameter {} has all-gather hooks, but its unit {} reshards among neighbours after forward: "
                       "choose one of them",
                       full_name, name_);
  if (layout_->shard_size() == 1) return;  // nothing is gathered
  const auto* per_parameter = dynamic_cast<const PerParameterLayout*>(layout_.get());
  require<ConfigError>(per_parameter != nullptr, "parameter {} has all-gather hooks: they need fsdp.sharding=per_parameter", full_name);
  const auto index = static_cast<std::size_t>(found - parameters_.begin());
  require<ConfigError>(per_parameter->cut(index).dim == 0, "parameter {} has all-gather hooks, but is sharded on dim {}: expected 0",
                       full_name, per_parameter->cut(index).dim);
  if (!hooked_) hooked_ = std::make_unique<HookedAllGather>(name_, *per_parameter, device_mesh_);
  hooked_->set(index, std::move(hooks));
}

// --- parameters ----------------------------------------------------------------------------------------------------

void UnitStorage::unshard(RateLimiter& limiter, bool full_precision) {
  const DType dtype = full_precision ? DType::f32 : param_dtype_;
  if (is_unsharded()) {
    if (unsharded_.dtype() == dtype) return;
    reshard(limiter);  // kept from a pass in the other precision
  }
  require(is_initialized(), "unit {} is used before its parameters have values: call initialize() or load a checkpoint", name_);
  check_placement();
  if (aliases_master(dtype)) {
    unsharded_ = StoredTensor(master_.view());
    return;
  }
  if (parts_.is_shared() && parts_.whole.dtype == dtype) return unshard_in_place();
  limiter.make_room();
  const OpenMpThreads threads(device_mesh_.side_stream_threads());
  Stream& unshard_stream = *device_mesh_.streams().unshard;
  const std::int64_t bytes = layout_->unsharded_numel() * dtype_bytes(dtype);
  StoredTensor whole(device_mesh_.unshard_group().allocate(device_mesh_.pool(), bytes, MemoryRole::unsharded_param, unshard_stream),
                     layout_->unsharded_numel(), dtype);
  if (post_forward_ && post_forward_.dtype() == dtype) {
    gather_from_neighbours(whole.view());
  } else if (hooked_) {
    hooked_->gather(master_.view(), shard_rank_, whole.view());
  } else {
    gather_shards(whole.view());
  }
  post_forward_.reset();
  whole.written_on(unshard_stream);
  unsharded_ = std::move(whole);
}

void UnitStorage::unshard_in_place() {
  Stream& unshard_stream = *device_mesh_.streams().unshard;
  if (!has_shared_masters()) cast_own_part(unshard_stream);
  round_ = last_round() + 1;
  parts_.publish(unshard_stream, round_);
  device_mesh_.unshard_group().wait_for_written(unshard_stream, name_.c_str(), parts_, round_);
  StoredTensor whole(parts_.whole);
  whole.written_on(unshard_stream);
  unsharded_ = std::move(whole);
}

void UnitStorage::cast_own_part(Stream& s) {
  const OpenMpThreads threads(device_mesh_.side_stream_threads());
  if (last_round() != begin_of_epoch(device_mesh_)) {
    device_mesh_.unshard_group().wait_for_released(s, name_.c_str(), parts_, last_round());
  }
  s.wait(cast_last_read_);
  device_mesh_.kernels().copy(s, master_.view(), parts_.own);
}

// Storage comes from the process group, which may have memory of its own (shared by a node's ranks, say).
void UnitStorage::check_placement() const {
  const DeviceKind found = device_mesh_.pool().device_of(master_.view().data), expected = master_pool().device();
  if (found == expected || !master_) return;
  const bool offloads = offload_ == CpuOffload::parameters;
  throw ConfigError(
      fmt::format("the sharded parameters of unit {} are on {}, but fsdp.cpu_offload={} keeps them on {}: {}, or let the process "
                  "group's allocate() use the pool that it is given",
                  name_, device_kind_name(found),
                  offloads                            ? "parameters"
                  : offload_ == CpuOffload::gradients ? "gradients"
                                                      : "none",
                  device_kind_name(expected), offloads ? "set fsdp.cpu_offload=none" : "set fsdp.cpu_offload=parameters"));
}

void UnitStorage::gather_shards(TensorView whole) {
  const DType dtype = whole.dtype;
  Stream& unshard_stream = *device_mesh_.streams().unshard;
  Kernels& kernels = device_mesh_.kernels();
  ProcessGroup& group = device_mesh_.unshard_group();
  if (layout_->shard_size() == 1) {
    kernels.copy(unshard_stream, master_.view(), whole);
    return;
  }
  TensorView shard = master_.view();
  Buffer low;
  if (dtype != DType::f32 || offload_ == CpuOffload::parameters) {
    Stream& cast_stream = *device_mesh_.streams().pre_unshard;
    low = group.allocate(device_mesh_.pool(), layout_->shard_numel() * dtype_bytes(dtype), MemoryRole::low_precision_shard, cast_stream);
    shard = {low.data(), Shape{layout_->shard_numel()}, dtype};
    kernels.copy(cast_stream, master_.view(), shard);
    unshard_stream.wait(cast_stream.record());
  }
  if (layout_->rearrangement().empty()) {
    group.all_gather(unshard_stream, name_.c_str(), shard, whole);
  } else {
    const std::int64_t numel = layout_->gathered_numel();
    const Buffer buffer = group.allocate(device_mesh_.pool(), numel * dtype_bytes(dtype), MemoryRole::communication, unshard_stream);
    const TensorView gathered{buffer.data(), Shape{numel}, dtype};
    group.all_gather(unshard_stream, name_.c_str(), shard, gathered);
    kernels.copy_blocks(unshard_stream, gathered, whole, layout_->rearrangement());
  }
  if (low) low.used_until(unshard_stream.record());
}

void UnitStorage::gather_from_neighbours(TensorView whole) {
  Stream& unshard_stream = *device_mesh_.streams().unshard;
  post_forward_.wait_on(unshard_stream);
  device_mesh_.neighbour_group(num_neighbours_).all_gather(unshard_stream, name_.c_str(), post_forward_.view(), whole);
  post_forward_.used_until(unshard_stream.record());
}

void UnitStorage::expose() {
  invariant(is_unsharded(), "only an unsharded unit is exposed to its module");
  unsharded_.wait_on(device_mesh_.compute());
  is_exposed_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i].parameter;
    parameter.data = unsharded_.view().slice(layout_->begin_of(i), parameter.shape.numel()).reshaped(parameter.shape);
  }
}

void UnitStorage::reshard(RateLimiter& limiter) {
  post_forward_.reset();
  if (!is_unsharded()) return;
  // Prefetched and never used: the gather still reads the master, which compute may be about to write.
  if (!is_exposed_) unsharded_.wait_on(device_mesh_.compute());
  is_exposed_ = false;
  for (const UnitParameter& p : parameters_) p.parameter->data = {};
  if (parts_.is_shared() && unsharded_.dtype() == parts_.whole.dtype) {
    parts_.release(device_mesh_.compute(), round_);
    if (!has_shared_masters()) cast_last_read_ = device_mesh_.compute().record();
  }
  unsharded_.give_to(limiter, device_mesh_.compute());
}

void UnitStorage::reshard_among_neighbours(RateLimiter& limiter) {
  if (!keeps_part_after_forward() || !is_unsharded()) {
    reshard(limiter);
    return;
  }
  Stream& compute = device_mesh_.compute();
  const ProcessGroup& neighbours = device_mesh_.neighbour_group(num_neighbours_);
  const std::int64_t numel = layout_->unsharded_numel() / num_neighbours_;
  const DType dtype = unsharded_.dtype();
  StoredTensor part(device_mesh_.pool().allocate(numel * dtype_bytes(dtype), MemoryRole::sharded_param, compute), numel, dtype);
  device_mesh_.kernels().copy(compute, unsharded_.view().slice(neighbours.rank() * numel, numel), part.view());
  part.written_on(compute);
  reshard(limiter);
  post_forward_ = std::move(part);
}

void UnitStorage::drop_step() {
  if (parts_.is_shared()) parts_.settle(last_round());
  if (turns_) turns_->drop_round();
  drop_arrays();
}

void UnitStorage::drop_arrays() {
  is_exposed_ = false;
  has_grads_.assign(has_grads_.size(), false);
  for (const UnitParameter& p : parameters_) p.parameter->data = {};
  hide_grads();
  for (StoredTensor* each : {&unsharded_, &post_forward_, &unsharded_grad_, &sharded_grad_}) each->reset();
}

}  // namespace mica::fsdp
