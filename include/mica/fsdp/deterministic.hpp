// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

/// How units reduce with RootOptions::deterministic: the same bits on any number of ranks with as many threads each. [Note: deterministic
/// mode] Micro-batch m of a step belongs to mesh rank m mod R in round m div R, and each has its own backward, which reduces. Its gradient
/// is sent unsummed to the owners of its shards (an all-to-all over the shard axis, then an all-gather over the replicate axis). The owner
/// adds a round's gradients one by one, in mesh rank order, which is the order of micro-batches, to the accumulated gradient in f32. A
/// world of one adds in the same order. So that nothing depends on how micro-batches are spread over ranks and rounds:
/// - gradients are not divided before average_grads(): until then the sharded gradient is the SUM over micro-batches (each
///   backward gets a dloss of 1);
/// - unsharded gradients never hold more than one micro-batch: no_sync is refused;
/// - clip_grad_norm takes exact sums ([Note: exact sums]).
/// Cost: a buffer as large as the unit's unsharded gradient, times the number of replicas, and the replicate axis moves
/// unsharded gradients instead of shards.
[[nodiscard]] GradientReduction& deterministic_reduction();

/// Divides the sharded gradients by the number of micro-batches of the step over all ranks: call it once, after the last
/// backward.
/// @stream  enqueued on compute.   @throws Error naming the state when the root is in a pass; ConfigError
///         without RootOptions::deterministic.
void average_grads(Root& root, std::int64_t num_micro_batches);

}  // namespace mica::fsdp
