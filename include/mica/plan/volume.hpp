// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/plan/step_record.hpp"

namespace mica::plan {

/// Collectives of one kind in one group, in one step of one rank.
struct CollectiveVolume {
  Collective kind;
  std::string group;  ///< its name
  int num_ranks = 1;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;       ///< of the unsharded side, as process groups count them
  std::int64_t sent_bytes = 0;  ///< what leaves this rank
};

/// Communication of one recorded step. With n bytes on the unsharded side of R ranks, a rank sends (R-1)/R * n in an all-gather or
/// reduce-scatter and twice that in an all-reduce (mean over the ranks; the minimum of any algorithm). Example: full_shard on 4 ranks,
/// units of 1 MB, root unit 1 MB, 12 blocks: forward 13 and backward 12 all-gathers, 13 reduce-scatters -> 38 * 3/4 MB = 28.5 MB sent.
/// @param step  as in totals_of()
[[nodiscard]] std::vector<CollectiveVolume> volume_of(const StepRecord& record, int step);

[[nodiscard]] std::int64_t total_sent_bytes(const std::vector<CollectiveVolume>& volumes);

/// One line per kind and group.
[[nodiscard]] std::string format_volume(const std::vector<CollectiveVolume>& volumes);

}  // namespace mica::plan
