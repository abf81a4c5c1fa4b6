// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// A rank's figures over some steps; times are means per step.
struct RankFigures {
  double step_ms = 0;
  double wait_ms = 0;  ///< idle, waiting for communication; at most step_ms
  double data_ms = 0;  ///< waiting for micro-batches
  double saving = 0;   ///< share of the steps during which it wrote a checkpoint in the background, 0 to 1
  std::int64_t peak_bytes = 0;
  /// The time that the rank itself needs. In each step, all ranks wait for the one that needs the most.
  [[nodiscard]] double own_ms() const { return step_ms - wait_ms; }
  [[nodiscard]] double compute_ms() const { return own_ms() - data_ms; }
};
/// Gathers the figures of all ranks, by rank. @collective
[[nodiscard]] std::vector<RankFigures> gather_rank_figures(const mpi::Communicator& world, const RankFigures& mine);

/// How the ranks' own_ms() are spread. The others wait for the rank with the largest.
struct RankSkew {
  double min_ms = 0, median_ms = 0, max_ms = 0;
  int slowest_rank = 0;
};
/// @param ranks  one or more
[[nodiscard]] RankSkew rank_skew(const std::vector<RankFigures>& ranks);

}  // namespace mica::train
