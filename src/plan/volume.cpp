// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/volume.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "mica/plan/memory_plan.hpp"

namespace mica::plan {
namespace {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::shard:
      return "shard";
    case Axis::neighbours:
      return "neighbours";
    case Axis::replicate:
      return "replicate";
    case Axis::world:
      return "world";
  }
  return "?";
}

std::int64_t sent_by(const CollectiveUse& use) {
  const std::int64_t ways = use.kind == Collective::all_reduce ? 2 : 1;
  return ways * use.bytes * (use.num_ranks - 1) / use.num_ranks;
}

class VolumeMeter final : public WalkVisitor {
 public:
  void allocate(MemoryRole, std::int64_t) override {}
  void free(MemoryRole, std::int64_t) override {}
  void stretch(const Stretch&) override {}
  void collective(const CollectiveUse& use) override {
    auto found = std::ranges::find_if(volumes_, [&](const AxisVolume& v) { return v.kind == use.kind && v.axis == use.axis; });
    if (found == volumes_.end()) {
      found = volumes_.insert(found, {.kind = use.kind, .axis = use.axis, .num_ranks = use.num_ranks});
    }
    ++found->calls;
    found->bytes += use.bytes;
    found->sent_bytes += sent_by(use);
  }
  [[nodiscard]] std::vector<AxisVolume> take() { return std::move(volumes_); }

 private:
  std::vector<AxisVolume> volumes_;
};

}  // namespace

std::vector<AxisVolume> volume_of_step(const std::vector<UnitSpec>& units, const StepSpec& spec, const PassProfile& profile) {
  VolumeMeter meter;
  StepWalk walk(units, spec, profile, meter);
  for (int i = 0; i < spec.micro_batches; ++i) walk.micro_batch(!spec.no_sync || i + 1 == spec.micro_batches);
  walk.optimizer_step();
  return meter.take();
}

std::int64_t total_sent_bytes(const std::vector<AxisVolume>& volumes) {
  std::int64_t bytes = 0;
  for (const AxisVolume& volume : volumes) bytes += volume.sent_bytes;
  return bytes;
}

std::string format_volume(const std::vector<AxisVolume>& volumes) {
  if (volumes.empty()) return "no communication\n";
  std::string text = fmt::format("{:<16} {:<10} {:>6} {:>8} {:>14}\n", "a step sends", "axis", "ranks", "calls", "sent by a rank");
  for (const AxisVolume& v : volumes) {
    text += fmt::format("{:<16} {:<10} {:>6} {:>8} {:>14}\n", collective_name(v.kind), axis_name(v.axis), v.num_ranks, v.calls,
                        format_bytes(v.sent_bytes));
  }
  text += fmt::format("{:<16} {:<10} {:>6} {:>8} {:>14}\n", "total", "", "", "", format_bytes(total_sent_bytes(volumes)));
  return text;
}

}  // namespace mica::plan
