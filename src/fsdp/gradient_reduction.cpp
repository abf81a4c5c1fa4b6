#include "mica/fsdp/gradient_reduction.hpp"

namespace mica::fsdp {
namespace {

class DefaultReduction final : public GradientReduction {
 public:
  void reduce(const ReductionJob& job) override {
    Kernels& kernels = job.device_mesh.kernels();
    if (job.division.pre != 1) {
      kernels.scale(job.post_backward, job.unsharded_grad, 1 / job.division.pre, job.unsharded_grad, Write::overwrite);
    }
    const TensorView slice = job.own_slice();
    if (job.shard_size > 1) {
      job.shard_group.reduce_scatter(job.post_backward, job.unit_name, job.unsharded_grad, slice);
    }
    if (job.all_reduce_group.num_ranks() > 1) {
      job.result_stream.wait(job.post_backward.record());
      job.all_reduce_group.all_reduce(job.result_stream, job.unit_name, slice, ReduceOp::sum);
    }
    kernels.scale(job.result_stream, slice, 1 / job.division.post, job.sharded_grad, job.mode);
  }
};

}  // namespace

GradientReduction& default_reduction() {
  static DefaultReduction reduction;
  return reduction;
}

}  // namespace mica::fsdp
