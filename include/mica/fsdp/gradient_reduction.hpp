// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/device_mesh.hpp"
#include "mica/fsdp/options.hpp"

namespace mica::fsdp {

/// The reduction of one unit's gradient, from the ranks that computed it to the shard of the mean. S = shard_size,
/// P = elements of a shard.
struct ReductionJob {
  const char* unit_name;
  DeviceMesh& device_mesh;
  TensorView unsharded_grad;  ///< [S*P] reduce_dtype; rank r's shard at r*P, padding zero; may be overwritten
  TensorView sharded_grad;    ///< [P] f32 (reduce_dtype with keep_low_precision_grads), the result
  Write mode;                 ///< accumulate: the result is added to the content
  int shard_rank;
  int shard_size;
  ProcessGroup& shard_group;       ///< of S ranks (1 for a no_shard unit); used on post_backward
  ProcessGroup& all_reduce_group;  ///< over which shards are replicated; used on result_stream
  DivisionFactors division;        ///< of the mean over the world
  Stream& post_backward;           ///< has waited for the unsharded gradient
  Stream& result_stream;           ///< all_reduce when there are replicas, else post_backward itself

  /// This rank's slice of the unsharded gradient.
  [[nodiscard]] TensorView own_slice() const {
    const std::int64_t numel = sharded_grad.numel();
    return unsharded_grad.slice(shard_rank * numel, numel);
  }
};

/// How gradients are reduced: the interface of communication hooks (docs/parity.md D12). One object
/// may serve many units. [Note: communication hooks]
/// A custom hook derives from this and is given in Options::reduction. It replaces the reduction and both divisions. A sharded
/// unit passes the zero-padded unsharded gradient and the output shard; a no_shard unit has a shard axis of one rank, so it
/// passes the whole gradient and an output of the same size. On a mesh with replicas all_reduce_group has more than one rank,
/// and the hook must reduce over it too.
class GradientReduction {
 public:
  virtual ~GradientReduction() = default;
  /// Enqueues the reduction, both divisions and any casts; the last write of sharded_grad is on result_stream.
  virtual void reduce(const ReductionJob& job) = 0;
  /// The dtype in which gradients are sent (compressing_reduction()). Unset: reduce_dtype.
  [[nodiscard]] virtual std::optional<DType> wire_dtype() const { return std::nullopt; }
};

/// reduce-scatter over the shard axis, all-reduce over the replicate axis, both in reduce_dtype, the division by the
/// world split before and after in 16 bits, and at once, at the end, in f32.
[[nodiscard]] GradientReduction& default_reduction();

/// The default one with gradients cast to `dtype` (fp16 or bf16) before both collectives and back after them.
/// @throws ConfigError for another dtype.
[[nodiscard]] GradientReduction& compressing_reduction(DType dtype);

}  // namespace mica::fsdp
