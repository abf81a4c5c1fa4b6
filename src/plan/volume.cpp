// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/volume.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "mica/plan/memory_plan.hpp"

namespace mica::plan {
namespace {

std::int64_t sent_by(const RecordedOp& op) {
  const std::int64_t ways = op.collective == Collective::all_reduce ? 2 : 1;
  return ways * op.bytes * (op.group.num_ranks - 1) / op.group.num_ranks;
}

}  // namespace

std::vector<CollectiveVolume> volume_of(const StepRecord& record, int step) {
  std::vector<CollectiveVolume> volumes;
  int at = 0;
  for (const RecordedOp& op : record.ops) {
    if (op.kind == RecordedOp::Kind::mark) ++at;
    if (at != step || op.kind != RecordedOp::Kind::collective || op.bytes == 0) continue;
    const std::string& group = record.groups[static_cast<std::size_t>(op.group_name)];
    auto found = std::ranges::find_if(volumes, [&](const CollectiveVolume& v) { return v.kind == op.collective && v.group == group; });
    if (found == volumes.end()) {
      found = volumes.insert(found, {.kind = op.collective, .group = group, .num_ranks = op.group.num_ranks});
    }
    ++found->calls;
    found->bytes += op.bytes;
    found->sent_bytes += sent_by(op);
  }
  return volumes;
}

std::int64_t total_sent_bytes(const std::vector<CollectiveVolume>& volumes) {
  std::int64_t bytes = 0;
  for (const CollectiveVolume& volume : volumes) bytes += volume.sent_bytes;
  return bytes;
}

std::string format_volume(const std::vector<CollectiveVolume>& volumes) {
  if (volumes.empty()) return "no communication\n";
  std::string text = fmt::format("{:<16} {:<22} {:>6} {:>8} {:>14}\n", "a step sends", "group", "ranks", "calls", "sent by a rank");
  for (const CollectiveVolume& v : volumes) {
    text += fmt::format("{:<16} {:<22} {:>6} {:>8} {:>14}\n", collective_name(v.kind), v.group, v.num_ranks, v.calls,
                        format_bytes(v.sent_bytes));
  }
  text += fmt::format("{:<16} {:<22} {:>6} {:>8} {:>14}\n", "total", "", "", "", format_bytes(total_sent_bytes(volumes)));
  return text;
}

}  // namespace mica::plan
