// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/plan/hardware.hpp"
#include "mica/plan/simulator.hpp"
#include "mica/plan/software.hpp"
#include "mica/plan/step_record.hpp"

namespace mica::plan {

/// Seconds of one matrix product on an idle processor: its FLOPs at the rate of large products, lowered where its tiles do not fill all
/// processors; or the time to move its operands, if that is longer. @param tf32  f32 products are computed in TF32
[[nodiscard]] double product_seconds(const ProductShape& product, const Hardware& hardware, bool tf32 = false);

/// Seconds of one collective on idle links: [Note: collectives' time] A ring over n ranks on N nodes moves (n-1)/n of the bytes (twice that
/// in an all-reduce) through every rank's link inside its node. With N > 1 it moves as much through every node's network, once for each
/// group that the node's ranks belong to, since all these groups communicate at the same time. Latency adds n-N steps inside nodes and N-1
/// between nodes; an all-reduce may use a tree with 2 log2(N) steps instead.
/// @param ranks_per_node  of the world
[[nodiscard]] double collective_seconds(Collective kind, std::int64_t bytes, const GroupShape& group, int ranks_per_node,
                                        const Hardware& hardware);

struct CostOptions {
  int ranks_per_node = 1;
  std::int64_t seq_len = 1, head_dim = 128;  ///< of attention
  DType dtype = DType::bf16;                 ///< of attention
  bool tf32 = false;
  const Software* software = nullptr;  ///< whose kernels are timed; null: such as move their bytes at full bandwidth
};
/// The ops of a record with their durations, one for one, for simulate().
/// @throws ConfigError if options.software has no attention on this hardware
[[nodiscard]] std::vector<SimOp> sim_ops(const StepRecord& record, const Hardware& hardware, const CostOptions& options);

/// What a rank computes and sends in one step.
struct StepTotals {
  double product_flops = 0, attention_flops = 0;  ///< as computed: attention is causal, and its backward recomputes the scores
  double recomputed_flops = 0;                    ///< of these two, what checkpointed modules compute again
  double model_attention_flops = 0;               ///< as MFU counts them: all scores, backward twice forward, no recomputation
  double kernel_bytes = 0;                        ///< read and written
  double sent_in_node = 0, sent_to_network = 0;   ///< bytes that this rank sends inside its node, and its part of what the node sends
  std::int64_t num_kernels = 0, num_collectives = 0;
};
/// @param step  the ops between mark `step` and the one before it (0: from the beginning)
[[nodiscard]] StepTotals totals_of(const StepRecord& record, int step, int ranks_per_node, bool is_gpu);

}  // namespace mica::plan
