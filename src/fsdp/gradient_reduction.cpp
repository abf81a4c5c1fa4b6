// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/gradient_reduction.hpp"

#include "mica/core/error.hpp"

namespace mica::fsdp {
namespace {

class DefaultReduction final : public GradientReduction {
 public:
  void reduce(const ReductionJob& job) override {
    Kernels& kernels = job.device_mesh.kernels();
    // The pre-factor keeps sums of 16 bits in range. f32 needs none and takes both factors at the end, which saves a pass over the
    // unsharded gradient; the pre-factor is a power of two, so the bits are the same.
    const bool divides_once = job.unsharded_grad.dtype == DType::f32;
    const double pre = divides_once ? 1 : job.division.pre, post = divides_once ? job.division.pre * job.division.post : job.division.post;
    if (pre != 1) kernels.scale(job.post_backward, job.unsharded_grad, 1 / pre, job.unsharded_grad, Write::overwrite);
    const TensorView slice = job.own_slice();
    if (job.shard_size > 1) {
      job.shard_group.reduce_scatter(job.post_backward, job.unit_name, job.unsharded_grad, slice);
    }
    if (job.all_reduce_group.num_ranks() > 1) {
      job.result_stream.wait(job.post_backward.record());
      job.all_reduce_group.all_reduce(job.result_stream, job.unit_name, slice, ReduceOp::sum);
    }
    kernels.scale(job.result_stream, slice, 1 / post, job.sharded_grad, job.mode);
  }
};

class CompressingReduction final : public GradientReduction {
 public:
  explicit CompressingReduction(DType dtype) : dtype_(dtype) {}

  void reduce(const ReductionJob& job) override {
    Kernels& kernels = job.device_mesh.kernels();
    const std::int64_t numel = job.unsharded_grad.numel();
    Buffer low = job.device_mesh.pool().allocate(numel * dtype_bytes(dtype_), MemoryRole::communication, job.post_backward);
    const TensorView sent{low.data(), Shape{numel}, dtype_};
    const TensorView slice = sent.slice(job.shard_rank * job.sharded_grad.numel(), job.sharded_grad.numel());
    kernels.scale(job.post_backward, job.unsharded_grad, 1 / job.division.pre, sent, Write::overwrite);
    if (job.shard_size > 1) job.shard_group.reduce_scatter(job.post_backward, job.unit_name, sent, slice);
    if (job.all_reduce_group.num_ranks() > 1) {
      job.result_stream.wait(job.post_backward.record());
      job.all_reduce_group.all_reduce(job.result_stream, job.unit_name, slice, ReduceOp::sum);
    }
    kernels.scale(job.result_stream, slice, 1 / job.division.post, job.sharded_grad, job.mode);
    low.used_until(job.result_stream.record());
  }
  [[nodiscard]] std::optional<DType> wire_dtype() const override { return dtype_; }

 private:
  DType dtype_;
};

}  // namespace

GradientReduction& default_reduction() {
  static DefaultReduction reduction;
  return reduction;
}

GradientReduction& compressing_reduction(DType dtype) {
  static CompressingReduction to_f16(DType::f16), to_bf16(DType::bf16);
  require<ConfigError>(dtype == DType::f16 || dtype == DType::bf16, "gradients can be compressed to fp16 or bf16, not to {}",
                       dtype_name(dtype));
  return dtype == DType::f16 ? to_f16 : to_bf16;
}

}  // namespace mica::fsdp
