// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/memory_plan.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace mica::plan {
namespace {

/// Counts as a pool does.
class MemoryMeter final : public WalkVisitor {
 public:
  void allocate(MemoryRole role, std::int64_t bytes) override {
    now_.by_role[static_cast<std::size_t>(role)] += bytes;
    note(now_);
  }
  void free(MemoryRole role, std::int64_t bytes) override { now_.by_role[static_cast<std::size_t>(role)] -= bytes; }
  void stretch(const Stretch& stretch) override {
    note(with(stretch.peak));
    note_role(MemoryRole::activation, stretch.activation_peak);
    note_role(MemoryRole::workspace, stretch.workspace_peak);
    now_ = with(stretch.end);
    note(now_);
  }
  void collective(const CollectiveUse&) override {}

  [[nodiscard]] const MemoryPoint& now() const { return now_; }
  /// The highest total since the last call.
  [[nodiscard]] MemoryPoint take_peak() { return std::exchange(peak_, now_); }
  [[nodiscard]] const BytesByRole& peak_by_role() const { return peak_by_role_; }
  [[nodiscard]] std::int64_t highest_total() const { return highest_total_; }

 private:
  [[nodiscard]] MemoryPoint with(const Moment& moment) const {
    MemoryPoint point = now_;
    point.by_role[static_cast<std::size_t>(MemoryRole::activation)] = moment.activation;
    point.by_role[static_cast<std::size_t>(MemoryRole::workspace)] = moment.workspace;
    return point;
  }
  void note(const MemoryPoint& point) {
    const std::int64_t total = point.total();
    if (total > peak_.total()) peak_ = point;
    highest_total_ = std::max(highest_total_, total);
    for (std::size_t role = 0; role < kNumMemoryRoles; ++role) {
      note_role(static_cast<MemoryRole>(role), point.by_role[role]);
    }
  }
  void note_role(MemoryRole role, std::int64_t bytes) {
    std::int64_t& peak = peak_by_role_[static_cast<std::size_t>(role)];
    peak = std::max(peak, bytes);
  }

  MemoryPoint now_, peak_;
  BytesByRole peak_by_role_{};
  std::int64_t highest_total_ = 0;
};

void keep_higher(MemoryPoint& highest, const MemoryPoint& point) {
  if (point.total() > highest.total()) highest = point;
}

StepMemory measure_step(StepWalk& walk, MemoryMeter& meter, const StepSpec& spec) {
  StepMemory step;
  step.start = meter.now();
  static_cast<void>(meter.take_peak());
  walk.on_backward = [&] { keep_higher(step.forward_peak, meter.take_peak()); };
  for (int i = 0; i < spec.micro_batches; ++i) {
    walk.micro_batch(!spec.no_sync || i + 1 == spec.micro_batches);
    keep_higher(step.backward_peak, meter.take_peak());
  }
  step.after_backward = meter.now();
  walk.optimizer_step();
  step.optimizer_peak = meter.take_peak();
  step.after_step = meter.now();
  walk.zero_grad();
  step.after_zero_grad = meter.now();
  return step;
}

}  // namespace

std::int64_t MemoryPoint::total() const { return std::accumulate(by_role.begin(), by_role.end(), std::int64_t{0}); }

MemoryPlan make_memory_plan(const std::vector<UnitSpec>& units, const StepSpec& spec, const PassProfile& profile) {
  MemoryMeter meter;
  StepWalk walk(units, spec, profile, meter);
  meter.allocate(MemoryRole::snapshot, spec.snapshot_bytes);
  walk.initialize();
  MemoryPlan plan;
  plan.first_step = measure_step(walk, meter, spec);
  plan.later_step = measure_step(walk, meter, spec);
  plan.peak = meter.highest_total();
  plan.peak_by_role = meter.peak_by_role();
  for (const UnitSpec& unit : units) {
    const std::int64_t bytes_per_element = dtype_bytes(DType::f32) + (unit.is_trainable ? spec.state_bytes_per_element : 0);
    if (unit.offloads_masters()) plan.offloaded += unit.shard_numel * bytes_per_element;
    if (unit.offloads_grads() && unit.is_trainable) plan.offloaded += unit.sharded_grad_bytes();
  }
  return plan;
}

// --- printing --------------------------------------------------------------------------------------------------------

std::string format_bytes(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::string format_memory_plan(const MemoryPlan& plan) {
  const StepMemory& step = plan.later_step;
  const std::array<std::pair<std::string_view, const MemoryPoint*>, 6> columns{{{"step begins", &step.start},
                                                                                {"forward peak", &step.forward_peak},
                                                                                {"backward peak", &step.backward_peak},
                                                                                {"after backward", &step.after_backward},
                                                                                {"optimizer peak", &step.optimizer_peak},
                                                                                {"step ends", &step.after_zero_grad}}};
  std::string text = fmt::format("{:<20}", "memory of one rank");
  for (const auto& [title, point] : columns) text += fmt::format(" {:>14}", title);
  text += '\n';
  const auto add_row = [&](std::string_view name, auto&& bytes_of) {
    text += fmt::format("{:<20}", name);
    for (const auto& [title, point] : columns) {
      const std::int64_t bytes = bytes_of(*point);
      text += fmt::format(" {:>14}", bytes == 0 ? "-" : format_bytes(bytes));
    }
    text += '\n';
  };
  for (std::size_t i = 0; i < kNumMemoryRoles; ++i) {
    if (plan.peak_by_role[i] == 0) continue;
    add_row(memory_role_name(static_cast<MemoryRole>(i)), [i](const MemoryPoint& point) { return point.by_role[i]; });
  }
  add_row("total", [](const MemoryPoint& point) { return point.total(); });
  const std::int64_t last = std::max({step.forward_peak.total(), step.backward_peak.total(), step.optimizer_peak.total()});
  const std::string_view where = last == step.backward_peak.total()  ? "backward"
                                 : last == step.forward_peak.total() ? "forward"
                                                                     : "the optimizer's step";
  text += fmt::format("peak {} ({} bytes), in {}\n", format_bytes(plan.peak), plan.peak, where);
  if (plan.offloaded > 0) text += fmt::format("in the offload tier {} more\n", format_bytes(plan.offloaded));
  return text;
}

}  // namespace mica::plan
