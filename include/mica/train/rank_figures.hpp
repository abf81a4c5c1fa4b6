// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// A rank's figures of some steps: a step's times are means.
struct RankFigures {
  double step_ms = 0;
  double wait_ms = 0;  ///< that the rank stood still for communication, at most step_ms
  double data_ms = 0;  ///< until micro-batches were there
  double saving = 0;   ///< share of the steps beside which it wrote a checkpoint in the background, 0 to 1
  std::int64_t peak_bytes = 0;
  /// What it needs for itself: the ranks of a step wait for the one that needs most.
  [[nodiscard]] double own_ms() const { return step_ms - wait_ms; }
  [[nodiscard]] double compute_ms() const { return own_ms() - data_ms; }
};
/// Every rank's, by rank. @collective
[[nodiscard]] std::vector<RankFigures> gather_rank_figures(const mpi::Communicator& world, const RankFigures& mine);

/// How even the ranks' own times are. A rank with more of it lets the others wait.
struct RankSkew {
  double min_ms = 0, median_ms = 0, max_ms = 0;
  int slowest_rank = 0;
};
/// @param ranks  one or more
[[nodiscard]] RankSkew rank_skew(const std::vector<RankFigures>& ranks);

}  // namespace mica::train
