// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/plan/step_walk.hpp"

namespace mica::plan {

/// One kind of collective over one axis, in one step of one rank.
struct AxisVolume {
  Collective kind;
  Axis axis;
  int num_ranks = 1;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;       ///< of the unsharded side, as process groups count them
  std::int64_t sent_bytes = 0;  ///< what leaves this rank
};

/// Communication of one step, from the second step on: all micro-batches and the all-reduce of clipping. With n bytes on the unsharded side
/// of R ranks, a rank sends (R-1)/R * n in an all-gather or reduce-scatter and twice that in an all-reduce (mean over the ranks; the
/// minimum of any algorithm). Example: full_shard on 4 ranks, units of 1 MB, root unit 1 MB, 12 blocks: forward 13 and backward 12
/// all-gathers, 13 reduce-scatters -> 38 * 3/4 MB = 28.5 MB sent.
[[nodiscard]] std::vector<AxisVolume> volume_of_step(const std::vector<UnitSpec>& units, const StepSpec& spec, const PassProfile& profile);

[[nodiscard]] std::int64_t total_sent_bytes(const std::vector<AxisVolume>& volumes);

/// One line per kind and axis.
[[nodiscard]] std::string format_volume(const std::vector<AxisVolume>& volumes);

}  // namespace mica::plan
