// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/plan/hardware.hpp"
#include "mica/plan/simulator.hpp"
#include "mica/plan/step_record.hpp"

namespace mica::plan {

/// Seconds of one product on an idle processor: its FLOPs at the rate that large products reach, less what does not fill the
/// processors with tiles; or its operands' bytes, if that takes longer. @param tf32  products of f32 are made of TF32
[[nodiscard]] double product_seconds(const ProductShape& product, const Hardware& hardware, bool tf32 = false);

/// Seconds of one collective on idle links: [Note: collectives' time]
/// A ring over n ranks on N nodes carries (n-1)/n of the bytes (an all-reduce twice that) through every rank's link in its node and,
/// with N > 1, through every node's network once for each of the groups that the node's ranks are in, all of which communicate at the same
/// time. On top come (n-N) steps within nodes and N-1 between them; an all-reduce may take a tree of 2 log2(N) steps instead.
/// @param ranks_per_node  of the world
[[nodiscard]] double collective_seconds(Collective kind, std::int64_t bytes, const GroupShape& group, int ranks_per_node,
                                        const Hardware& hardware);

struct CostOptions {
  int ranks_per_node = 1;
  bool tf32 = false;
};
/// The ops of a record with their seconds, for simulate(). One for one.
[[nodiscard]] std::vector<SimOp> sim_ops(const StepRecord& record, const Hardware& hardware, const CostOptions& options);

/// What a rank computes and sends in one step.
struct StepTotals {
  double product_flops = 0, attention_flops = 0;  ///< as they are made: attention is causal, and its backward makes its scores again
  double model_attention_flops = 0;               ///< as MFU counts them: of all scores, backward twice forward, nothing recomputed
  double kernel_bytes = 0;                        ///< read and written
  double sent_in_node = 0, sent_to_network = 0;   ///< bytes that leave this rank: to its node's ranks, and its part of what leaves the node
  std::int64_t num_kernels = 0, num_collectives = 0;
};
/// @param step  the ops between mark `step` and the one before it (0: from the beginning)
[[nodiscard]] StepTotals totals_of(const StepRecord& record, int step, int ranks_per_node);

}  // namespace mica::plan
