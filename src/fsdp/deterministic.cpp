// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/deterministic.hpp"

#include "mica/core/error.hpp"

namespace mica::fsdp {
namespace {

class DeterministicReduction final : public GradientReduction {
 public:
  void reduce(const ReductionJob& job) override {
    Kernels& kernels = job.device_mesh.kernels();
    Pool& pool = job.device_mesh.pool();
    const DType dtype = job.unsharded_grad.dtype;
    const std::int64_t numel = job.unsharded_grad.numel();
    ConstTensorView rows = job.unsharded_grad;  // [ranks, P]; after the exchange, this rank's shard of each micro-batch
    Buffer swapped, gathered;
    if (job.shard_size > 1) {
      swapped = pool.allocate(rows.bytes(), MemoryRole::communication, job.post_backward);
      const TensorView received{swapped.data(), Shape{numel}, dtype};
      job.shard_group.all_to_all(job.post_backward, job.unit_name, rows, received);
      rows = received;
    }
    if (job.all_reduce_group.num_ranks() > 1) {
      const std::int64_t replicas = job.all_reduce_group.num_ranks();
      job.result_stream.wait(job.post_backward.record());
      gathered = pool.allocate(replicas * rows.bytes(), MemoryRole::communication, job.result_stream);
      const TensorView received{gathered.data(), Shape{replicas * numel}, dtype};
      job.all_reduce_group.all_gather(job.result_stream, job.unit_name, rows, received);
      if (swapped) swapped.used_until(job.result_stream.record());
      rows = received;
    }
    const std::int64_t shard_numel = job.sharded_grad.numel();
    for (std::int64_t begin = 0; begin < rows.numel(); begin += shard_numel) {
      kernels.scale(job.result_stream, rows.slice(begin, shard_numel), 1.0, job.sharded_grad, begin == 0 ? job.mode : Write::accumulate);
    }
  }
};

}  // namespace

GradientReduction& deterministic_reduction() {
  static DeterministicReduction reduction;
  return reduction;
}

void average_grads(Root& root, std::int64_t num_micro_batches) {
  require(root.state() == TrainingState::idle, "average_grads is called while the root is {}: call it between passes",
          training_state_name(root.state()));
  require(num_micro_batches >= 1, "average_grads over {} micro-batches, expected at least 1", num_micro_batches);
  require<ConfigError>(root.options().deterministic,
                       "average_grads: the gradients are means already; only RootOptions::deterministic leaves sums");
  const DeviceMesh& device_mesh = root.device_mesh();
  for (const Unit* unit : root.units()) {
    if (!unit->storage() || !unit->storage()->sharded_grad()) continue;
    const TensorView grad = unit->storage()->sharded_grad();
    device_mesh.kernels().scale(device_mesh.compute(), grad, 1 / static_cast<double>(num_micro_batches), grad, Write::overwrite);
  }
}

}  // namespace mica::fsdp
