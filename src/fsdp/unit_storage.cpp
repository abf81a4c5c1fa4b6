#include "mica/fsdp/unit_storage.hpp"

#include <algorithm>
#include <utility>

#include "mica/nn/init.hpp"
#include "mica/tensor/openmp.hpp"

namespace mica::fsdp {
namespace {

std::vector<ParameterSpec> specs_of(const std::vector<UnitParameter>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const UnitParameter& p : parameters) specs.push_back({p.full_name, p.parameter->shape});
  return specs;
}

/// Beside a compute stream with a thread of its own, the other streams' loops run alone: OpenMP belongs to compute.
int side_stream_threads(const DeviceMesh& device_mesh) {
  return device_mesh.streams().mode == StreamMode::threaded ? 1 : openmp_threads();
}

}  // namespace

UnitStorage::UnitStorage(std::string name, std::vector<UnitParameter> parameters, DeviceMesh& device_mesh,
                             const Options& options)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      device_mesh_(device_mesh),
      param_dtype_(options.param_dtype()),
      reduce_dtype_(options.reduce_dtype()),
      use_orig_params_(options.use_orig_params),
      has_grads_(parameters_.size(), false),
      layout_(specs_of(parameters_),
              options.strategy == Strategy::no_shard ? 1 : device_mesh.geometry().shard_size, kUnitAlignmentNumel),
      shard_rank_(layout_.shard_size() == 1 ? 0 : device_mesh.mesh().shard_rank()),
      // A no_shard unit on a sharded mesh is replicated over every rank.
      all_reduce_group_(layout_.shard_size() == device_mesh.geometry().shard_size ? &device_mesh.replicate_group()
                                                                                  : &device_mesh.all_ranks_group()),
      division_(division_factors(device_mesh.geometry().world_size)),
      reduction_(options.reduction ? *options.reduction : default_reduction()) {}

UnitStorage::~UnitStorage() { drop_step(); }

bool UnitStorage::is_trainable() const {
  return std::ranges::any_of(parameters_, [](const UnitParameter& p) { return p.parameter->requires_grad; });
}

void UnitStorage::initialize(std::uint64_t seed) {
  Stream& compute = device_mesh_.compute();
  const std::int64_t bytes = layout_.shard_numel() * dtype_bytes(DType::f32);
  master_buffer_ = device_mesh_.mesh().shard().allocate(device_mesh_.pool(), bytes, MemoryRole::sharded_param, compute);
  master_ = {master_buffer_.data(), Shape{layout_.shard_numel()}, DType::f32};
  device_mesh_.kernels().fill(compute, master_, 0.0);
  for (const Piece& piece : layout_.pieces(shard_rank_)) {
    const auto parameter = std::ranges::find(parameters_, piece.parameter, &UnitParameter::full_name);
    nn::fill_initial(device_mesh_.kernels(), compute, *parameter->parameter, piece.parameter, seed, piece.begin,
                     master_.slice(piece.offset, piece.numel()));
  }
}

void UnitStorage::unshard(RateLimiter& limiter) {
  if (is_unsharded_) return;
  require(is_initialized(), "unit {} is used before its parameters have values: call initialize() or load a checkpoint",
          name_);
  is_unsharded_ = true;
  if (aliases_master()) {
    unsharded_ = master_;
    return;
  }
  limiter.make_room();
  const OpenMpThreads threads(side_stream_threads(device_mesh_));
  Stream& unshard_stream = *device_mesh_.streams().unshard;
  Kernels& kernels = device_mesh_.kernels();
  ProcessGroup& group = device_mesh_.unshard_group();
  const std::int64_t bytes = layout_.unsharded_numel() * dtype_bytes(param_dtype_);
  unsharded_buffer_ = group.allocate(device_mesh_.pool(), bytes, MemoryRole::unsharded_param, unshard_stream);
  unsharded_ = {unsharded_buffer_.data(), Shape{layout_.unsharded_numel()}, param_dtype_};
  if (layout_.shard_size() == 1) {
    kernels.copy(unshard_stream, master_, unsharded_);
  } else if (param_dtype_ == DType::f32) {
    group.all_gather(unshard_stream, name_.c_str(), master_, unsharded_);
  } else {
    Stream& cast_stream = *device_mesh_.streams().pre_unshard;
    Buffer low = group.allocate(device_mesh_.pool(), layout_.shard_numel() * dtype_bytes(param_dtype_),
                                MemoryRole::low_precision_shard, cast_stream);
    const TensorView low_shard{low.data(), Shape{layout_.shard_numel()}, param_dtype_};
    kernels.copy(cast_stream, master_, low_shard);
    unshard_stream.wait(cast_stream.record());
    group.all_gather(unshard_stream, name_.c_str(), low_shard, unsharded_);
    low.used_until(unshard_stream.record());
  }
  unsharded_ready_ = unshard_stream.record();
}

void UnitStorage::expose() {
  invariant(is_unsharded_, "only an unsharded unit is exposed to its module");
  device_mesh_.compute().wait(unsharded_ready_);
  is_exposed_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i].parameter;
    parameter.data = unsharded_.slice(layout_.begin_of(i), parameter.shape.numel()).reshaped(parameter.shape);
  }
}

void UnitStorage::reshard(RateLimiter& limiter) {
  if (!is_unsharded_) return;
  // Prefetched and never used: the gather still reads the master, which compute may be about to write.
  if (!is_exposed_) device_mesh_.compute().wait(unsharded_ready_);
  is_unsharded_ = is_exposed_ = false;
  unsharded_ready_ = {};
  unsharded_ = {};
  for (const UnitParameter& p : parameters_) p.parameter->data = {};
  if (unsharded_buffer_) limiter.release(std::move(unsharded_buffer_), device_mesh_.compute().record());
}

void UnitStorage::prepare_grads(RateLimiter& limiter) {
  if (!is_trainable()) return;
  Stream& compute = device_mesh_.compute();
  if (!unsharded_grad_buffer_) {
    limiter.make_room();
    unsharded_grad_buffer_ = device_mesh_.reduce_group().allocate(
        device_mesh_.pool(), layout_.unsharded_numel() * dtype_bytes(reduce_dtype_), MemoryRole::unsharded_grad, compute);
    unsharded_grad_ = {unsharded_grad_buffer_.data(), Shape{layout_.unsharded_numel()}, reduce_dtype_};
    for (const FlatLayout::Gap& gap : layout_.gaps()) {
      device_mesh_.kernels().fill(compute, unsharded_grad_.slice(gap.begin, gap.end - gap.begin), 0.0);
    }
    for (const UnitParameter& p : parameters_) p.parameter->grad_written = false;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i].parameter;
    parameter.grad = unsharded_grad_.slice(layout_.begin_of(i), parameter.shape.numel()).reshaped(parameter.shape);
  }
}

void UnitStorage::reduce_grads(RateLimiter& limiter) {
  if (!unsharded_grad_buffer_) return;
  note_written_grads();
  zero_unwritten_grads();
  hide_grads();
  const OpenMpThreads threads(side_stream_threads(device_mesh_));
  Stream& reduce_stream = *device_mesh_.streams().post_backward;
  reduce_stream.wait(device_mesh_.compute().record());
  const bool has_replicas = all_reduce_group_->num_ranks() > 1;
  Stream& result_stream = has_replicas ? *device_mesh_.streams().all_reduce : reduce_stream;
  const Write mode = sharded_grad_buffer_ ? Write::accumulate : Write::overwrite;
  if (!sharded_grad_buffer_) {
    sharded_grad_buffer_ = device_mesh_.pool().allocate(layout_.shard_numel() * dtype_bytes(DType::f32),
                                                        MemoryRole::sharded_grad, result_stream);
    sharded_grad_ = {sharded_grad_buffer_.data(), Shape{layout_.shard_numel()}, DType::f32};
  }
  reduction_.reduce({.unit_name = name_.c_str(),
                     .device_mesh = device_mesh_,
                     .unsharded_grad = unsharded_grad_,
                     .sharded_grad = sharded_grad_,
                     .mode = mode,
                     .shard_rank = shard_rank_,
                     .shard_size = layout_.shard_size(),
                     .shard_group = device_mesh_.reduce_group(),
                     .all_reduce_group = *all_reduce_group_,
                     .division = division_,
                     .post_backward = reduce_stream,
                     .result_stream = result_stream});
  unsharded_grad_ = {};
  limiter.release(std::move(unsharded_grad_buffer_), result_stream.record());
}

void UnitStorage::note_written_grads() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!use_orig_params_ || parameters_[i].parameter->grad_written) has_grads_[i] = true;
  }
}

void UnitStorage::zero_unwritten_grads() {
  for (const UnitParameter& p : parameters_) {
    if (!p.parameter->grad_written) device_mesh_.kernels().fill(device_mesh_.compute(), p.parameter->grad, 0.0);
  }
}

void UnitStorage::hide_grads() {
  for (const UnitParameter& p : parameters_) {
    p.parameter->grad = {};
    p.parameter->grad_written = false;
  }
}

void UnitStorage::zero_grad() {
  if (!sharded_grad_buffer_) return;
  sharded_grad_buffer_.used_until(device_mesh_.compute().record());
  sharded_grad_buffer_.reset();
  sharded_grad_ = {};
  has_grads_.assign(has_grads_.size(), false);
}

void UnitStorage::drop_step() {
  is_unsharded_ = is_exposed_ = false;
  unsharded_ready_ = {};
  unsharded_ = unsharded_grad_ = sharded_grad_ = {};
  has_grads_.assign(has_grads_.size(), false);
  for (const UnitParameter& p : parameters_) p.parameter->data = {};
  hide_grads();
  unsharded_buffer_.reset();
  unsharded_grad_buffer_.reset();
  sharded_grad_buffer_.reset();
}

}  // namespace mica::fsdp
