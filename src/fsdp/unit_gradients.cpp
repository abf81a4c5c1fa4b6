// SPDX-License-Identifier: Apache-2.0
// The gradients of a unit: see [Note: unit storage].
#include "mica/fsdp/unit_storage.hpp"

namespace mica::fsdp {

void UnitStorage::prepare_grads(RateLimiter& limiter, bool full_precision) {
  if (!is_trainable()) return;
  Stream& compute = device_mesh_.compute();
  if (!unsharded_grad_) {
    const DType dtype = full_precision ? DType::f32 : reduce_dtype_;
    const MemoryRole role = hands_grads_over() ? MemoryRole::sharded_grad : MemoryRole::unsharded_grad;
    limiter.make_room();
    unsharded_grad_ = {
        device_mesh_.reduce_group().allocate(device_mesh_.pool(), layout_->unsharded_numel() * dtype_bytes(dtype), role, compute),
        layout_->unsharded_numel(), dtype};
    for (const ShardLayout::Gap& gap : layout_->gaps()) {
      device_mesh_.kernels().fill(compute, unsharded_grad_.view().slice(gap.begin, gap.end - gap.begin), 0.0);
    }
    for (const UnitParameter& p : parameters_) p.parameter->grad_written = false;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i].parameter;
    parameter.grad = unsharded_grad_.view().slice(layout_->begin_of(i), parameter.shape.numel()).reshaped(parameter.shape);
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

void UnitStorage::reduce_grads(RateLimiter& limiter) {
  if (!unsharded_grad_) return;
  note_written_grads();
  zero_unwritten_grads();
  hide_grads();
  const OpenMpThreads threads(device_mesh_.side_stream_threads());
  Kernels& kernels = device_mesh_.kernels();
  Stream& reduce_stream = *device_mesh_.streams().post_backward;
  Stream& result_stream = all_reduce_group().num_ranks() > 1 ? *device_mesh_.streams().all_reduce : reduce_stream;
  reduce_stream.wait(device_mesh_.compute().record());
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
  reduction_.reduce({.unit_name = name_.c_str(),
                     .device_mesh = device_mesh_,
                     .unsharded_grad = gathered,
                     .sharded_grad = result,
                     .mode = mode,
                     .shard_rank = shard_rank_,
                     .shard_size = layout_->shard_size(),
                     .shard_group = device_mesh_.reduce_group(),
                     .all_reduce_group = all_reduce_group(),
                     .division = division_factors(device_mesh_.geometry().world_size),
                     .post_backward = reduce_stream,
                     .result_stream = result_stream});
  if (on_device) kernels.copy(result_stream, result, kept);
  if (rearranged) rearranged.used_until(result_stream.record());
  unsharded_grad_.give_to(limiter, result_stream);
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
  if (unsharded_grad_) {  // accumulated under no_sync, on compute alone, which is its home
    hide_grads();
    unsharded_grad_.reset();
  }
  if (!sharded_grad_) return;
  // It is used on compute and on the stream that writes it; one of the two is the buffer's home.
  Stream& other = keeps_unsharded_grads() ? gradient_stream() : device_mesh_.compute();
  sharded_grad_.used_until(other.record());
  sharded_grad_.reset();
  has_grads_.assign(has_grads_.size(), false);
}

}  // namespace mica::fsdp
