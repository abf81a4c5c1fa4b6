// SPDX-License-Identifier: Apache-2.0
// The gradients of a unit: see [Note: unit storage].
#include "mica/fsdp/unit_storage.hpp"

namespace mica::fsdp {

namespace {

/// Below 1 MiB of gradient, waits for turns would cost more than the memory is worth.
constexpr std::int64_t kLargeNumel = std::int64_t{1} << 18;

}  // namespace

bool UnitStorage::is_large(std::size_t i) const { return parameters_[i].parameter->shape.numel() >= kLargeNumel; }

bool UnitStorage::shares_grads() const {
  if (!can_share_grads_ || !is_group_sharing()) return false;
  std::int64_t all = 0, in_turns = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i].parameter;
    all += parameter.shape.numel();
    if (is_in_turns(i) && parameter.requires_grad) in_turns += parameter.shape.numel();
  }
  return in_turns > 0 && 2 * in_turns >= all;
}

void UnitStorage::share_grads() {
  if (turns_ || !shares_grads()) return;
  Stream& compute = device_mesh_.compute();
  const std::int64_t numel = layout_->shard_numel();
  grad_parts_ = device_mesh_.mesh().shard().allocate_parts(device_mesh_.pool(), numel, DType::f32, MemoryRole::sharded_grad, compute);
  device_mesh_.kernels().fill(compute, grad_parts_.own, 0.0);  // what is between parameters stays zero
  turns_ = std::make_unique<GradientTurns>(name_, device_mesh_, grad_parts_);
}

std::int64_t UnitStorage::own_grad_begin(std::size_t i) const {
  std::int64_t begin = 0;
  for (std::size_t before = 0; before < i; ++before) begin += is_in_turns(before) ? 0 : parameters_[before].parameter->shape.numel();
  return begin;
}

void UnitStorage::begin_turns(RateLimiter& limiter) {
  Stream& compute = device_mesh_.compute();
  if (sharded_grad_ && sharded_grad_.view().data == grad_parts_.own.data) {
    allocate_sharded_grad(compute);
    device_mesh_.kernels().copy(compute, grad_parts_.own, sharded_grad_.view());
  }
  const std::int64_t numel = own_grad_begin(parameters_.size());
  if (numel > 0) {
    limiter.make_room();
    const std::int64_t bytes = numel * dtype_bytes(DType::f32);
    unsharded_grad_ = {device_mesh_.reduce_group().allocate(device_mesh_.pool(), bytes, MemoryRole::unsharded_grad, compute), numel,
                       DType::f32};
  }
  turns_->begin_round(compute);
}

void UnitStorage::prepare_grads(RateLimiter& limiter, bool full_precision) {
  if (!is_trainable()) return;
  Stream& compute = device_mesh_.compute();
  const bool is_new = !has_unsharded_grad();
  if (is_new && turns_) {
    begin_turns(limiter);
  } else if (is_new) {
    const DType dtype = full_precision ? DType::f32 : reduce_dtype_;
    const MemoryRole role = hands_grads_over() ? MemoryRole::sharded_grad : MemoryRole::unsharded_grad;
    limiter.make_room();
    unsharded_grad_ = {
        device_mesh_.reduce_group().allocate(device_mesh_.pool(), layout_->unsharded_numel() * dtype_bytes(dtype), role, compute),
        layout_->unsharded_numel(), dtype};
    for (const ShardLayout::Gap& gap : layout_->gaps()) {
      device_mesh_.kernels().fill(compute, unsharded_grad_.view().slice(gap.begin, gap.end - gap.begin), 0.0);
    }
  }
  if (is_new) {
    for (const UnitParameter& p : parameters_) p.parameter->grad_written = false;
  }
  expose_grads();
}

void UnitStorage::expose_grads() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i].parameter;
    const std::int64_t numel = parameter.shape.numel();
    const bool in_turns = turns_ && is_in_turns(i);
    const TensorView grad = in_turns ? grad_parts_.whole.slice(layout_->begin_of(i), numel)
                            : turns_ ? unsharded_grad_.view().slice(own_grad_begin(i), numel)
                                     : unsharded_grad_.view().slice(layout_->begin_of(i), numel);
    parameter.grad = grad.reshaped(parameter.shape);
    parameter.grad_turns = in_turns ? turns_.get() : nullptr;
  }
}

bool UnitStorage::keeps_unsharded_grads() const {
  const bool is_alone = layout_->shard_size() == 1 && all_reduce_group().num_ranks() == 1;
  const bool fits = keeps_low_precision_grads_ || reduce_dtype_ == DType::f32;
  return is_alone && fits && offload_ == CpuOffload::none && &reduction_ == &default_reduction();
}

void UnitStorage::allocate_sharded_grad(Stream& home) {
  const DType dtype = keeps_low_precision_grads_ ? unsharded_grad_.dtype() : DType::f32;
  const std::int64_t numel = layout_->shard_numel();
  sharded_grad_ = {grad_pool().allocate(numel * dtype_bytes(dtype), MemoryRole::sharded_grad, home), numel, dtype};
}

void UnitStorage::average_grads(TensorView unsharded, TensorView sharded, Write mode, int shard_size, Stream& result_stream) {
  reduction_.reduce({.unit_name = name_.c_str(),
                     .device_mesh = device_mesh_,
                     .unsharded_grad = unsharded,
                     .sharded_grad = sharded,
                     .mode = mode,
                     .shard_rank = shard_size > 1 ? shard_rank_ : 0,
                     .shard_size = shard_size,
                     .shard_group = device_mesh_.reduce_group(),
                     .all_reduce_group = all_reduce_group(),
                     .division = division_factors(device_mesh_.geometry().world_size),
                     .post_backward = *device_mesh_.streams().post_backward,
                     .result_stream = result_stream});
}

void UnitStorage::reduce_grads(RateLimiter& limiter) {
  if (!has_unsharded_grad()) return;
  note_written_grads();
  zero_unwritten_grads();
  hide_grads();
  const OpenMpThreads threads(device_mesh_.side_stream_threads());
  Kernels& kernels = device_mesh_.kernels();
  Stream& reduce_stream = *device_mesh_.streams().post_backward;
  Stream& result_stream = all_reduce_group().num_ranks() > 1 ? *device_mesh_.streams().all_reduce : reduce_stream;
  reduce_stream.wait(device_mesh_.compute().record());
  if (turns_) return reduce_turns(limiter, reduce_stream, result_stream);
  if (hands_grads_over()) {
    sharded_grad_ = std::move(unsharded_grad_);
    return;
  }

  TensorView gathered = unsharded_grad_.view();
  Buffer rearranged;
  if (!layout_->rearrangement().empty()) {
    const std::int64_t numel = layout_->gathered_numel();
    rearranged = device_mesh_.pool().allocate(numel * dtype_bytes(gathered.dtype), MemoryRole::communication, reduce_stream);
    gathered = {rearranged.data(), Shape{numel}, gathered.dtype};
    std::vector<BlockCopy> blocks;
    for (const BlockCopy& b : layout_->rearrangement()) blocks.push_back(b.reversed());
    kernels.copy_blocks(reduce_stream, unsharded_grad_.view(), gathered, blocks);
  }

  const Write mode = sharded_grad_ ? Write::accumulate : Write::overwrite;
  if (!sharded_grad_) allocate_sharded_grad(result_stream);
  const TensorView kept = sharded_grad_.view();
  TensorView result = kept;
  Buffer on_device;  // offloaded gradients are reduced here first
  if (offload_ != CpuOffload::none) {
    on_device = device_mesh_.pool().allocate(kept.bytes(), MemoryRole::sharded_grad, result_stream);
    result = {on_device.data(), kept.shape, kept.dtype};
  }
  // Accumulated on the device: copy engines bring the offloaded gradient here and the result back, beside the kernels.
  if (on_device && mode == Write::accumulate) kernels.copy(result_stream, kept, result);
  average_grads(gathered, result, mode, layout_->shard_size(), result_stream);
  if (on_device) kernels.copy(result_stream, result, kept);
  if (rearranged) rearranged.used_until(result_stream.record());
  unsharded_grad_.give_to(limiter, result_stream);
}

void UnitStorage::reduce_turns(RateLimiter& limiter, Stream& reduce_stream, Stream& result_stream) {
  ProcessGroup& group = device_mesh_.reduce_group();
  const TensorView part = grad_parts_.own;
  if (unsharded_grad_) {
    const TensorView own = unsharded_grad_.view();
    group.all_reduce(reduce_stream, name_.c_str(), own, ReduceOp::sum);
    for (const Piece& piece : layout_->pieces(shard_rank_)) {
      if (is_in_turns(piece.parameter) || piece.empty()) continue;
      device_mesh_.kernels().copy(reduce_stream, own.slice(own_grad_begin(piece.parameter) + piece.begin, piece.numel()),
                                  part.slice(piece.offset, piece.numel()));
    }
    unsharded_grad_.give_to(limiter, reduce_stream);
  }
  turns_->wait_until_written(group, reduce_stream);
  const bool adds = static_cast<bool>(sharded_grad_);
  average_grads(part, adds ? sharded_grad_.view() : part, adds ? Write::accumulate : Write::overwrite, 1, result_stream);
  if (!adds) sharded_grad_ = StoredTensor(part);
}

void UnitStorage::note_written_grads() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!use_orig_params_ || parameters_[i].parameter->grad_written) has_grads_[i] = true;
  }
}

void UnitStorage::zero_unwritten_grads() {
  const auto zero = [&](TensorView grad) { device_mesh_.kernels().fill(device_mesh_.compute(), grad, 0.0); };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i].parameter;
    if (parameter.grad_written) continue;
    if (!parameter.grad_turns) {
      zero(parameter.grad);
      continue;
    }
    for (const Piece& piece : layout_->pieces(shard_rank_)) {
      if (piece.parameter == i) zero(grad_parts_.own.slice(piece.offset, piece.numel()));
    }
  }
}

void UnitStorage::hide_grads() {
  for (const UnitParameter& p : parameters_) {
    p.parameter->grad = {};
    p.parameter->grad_turns = nullptr;
    p.parameter->grad_written = false;
  }
}

void UnitStorage::zero_grad() {
  if (has_unsharded_grad()) {  // accumulated under no_sync, on compute alone, which is its home
    hide_grads();
    unsharded_grad_.reset();
    if (turns_) turns_->drop_round();
  }
  if (!sharded_grad_) return;
  // It is used on compute and on the stream that writes it; one of the two is the buffer's home.
  Stream& other = keeps_unsharded_grads() ? gradient_stream() : device_mesh_.compute();
  sharded_grad_.used_until(other.record());
  sharded_grad_.reset();
  has_grads_.assign(has_grads_.size(), false);
}

}  // namespace mica::fsdp
