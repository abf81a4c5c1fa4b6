// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace mica::data {

/// How a step's global batch is divided. R = num_ranks is the number of data-parallel ranks, which with FSDP is the world.
/// A step has accumulation * R micro-batches; micro-batch m holds the step's sequences [m*B, m*B + B) with B =
/// micro_batch, and is computed by data-parallel rank m mod R in round m div R. Example: B = 2, R = 3, accumulation =
/// 2: global_batch = 12; rank 1 computes sequences 2 3 in round 0 and 8 9 in round 1.
struct BatchPlan {
  std::int64_t micro_batch = 1;   ///< B, sequences per rank in one forward and backward
  std::int64_t accumulation = 1;  ///< rounds per step
  std::int64_t num_ranks = 1;     ///< R
  /// Where this launch begins: the step, and the number of the run's sequences seen before it.
  std::int64_t first_step = 1;
  std::int64_t sequences_before = 0;

  [[nodiscard]] std::int64_t global_batch() const { return micro_batch * accumulation * num_ranks; }
  /// Number of the run's sequences seen before `step`. @param step  first_step or later
  [[nodiscard]] std::int64_t sequences_at(std::int64_t step) const { return sequences_before + (step - first_step) * global_batch(); }
};

/// @param global_batch  sequences per step, or 0 for one round: micro_batch * num_ranks.
/// @throws ConfigError if it is not a multiple of micro_batch * num_ranks; lists the nearest valid values, and the
/// micro-batches and numbers of ranks with which it is valid.
[[nodiscard]] BatchPlan make_batch_plan(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch);

/// How a global batch that does not fit can be kept: "with train.micro_batch=2, or on 3 or 6 ranks"; empty if it cannot.
[[nodiscard]] std::string ways_to_keep_batch(std::int64_t micro_batch, std::int64_t num_ranks, std::int64_t global_batch);

}  // namespace mica::data
