// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/memory_plan.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace mica::plan {

MemoryMeter::MemoryMeter(Pool& pool) : pool_(pool) { pool_.reset_peak(); }

MemoryLevel MemoryMeter::now() const {
  const MemoryStats& stats = pool_.stats();
  return {.total = stats.current, .by_role = stats.current_by_role};
}

MemoryLevel MemoryMeter::take_peak() {
  keep_peaks();
  const MemoryStats& stats = pool_.stats();
  const MemoryLevel peak{.total = stats.peak, .by_role = stats.peak_by_role};
  pool_.reset_peak();
  return peak;
}

MemoryStats MemoryMeter::stats() {
  keep_peaks();
  MemoryStats stats = pool_.stats();
  stats.peak = highest_.peak;
  stats.reserved_peak = highest_.reserved_peak;
  stats.peak_by_role = highest_.peak_by_role;
  return stats;
}

void MemoryMeter::keep_peaks() {
  const MemoryStats& stats = pool_.stats();
  highest_.peak = std::max(highest_.peak, stats.peak);
  highest_.reserved_peak = std::max(highest_.reserved_peak, stats.reserved_peak);
  for (std::size_t role = 0; role < kNumMemoryRoles; ++role) {
    highest_.peak_by_role[role] = std::max(highest_.peak_by_role[role], stats.peak_by_role[role]);
  }
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

std::string format_memory_plan(const StepMemory& step, std::int64_t peak, std::int64_t offloaded) {
  const std::array<std::pair<std::string_view, const MemoryLevel*>, 6> columns{{{"step begins", &step.start},
                                                                                {"forward peak", &step.forward_peak},
                                                                                {"backward peak", &step.backward_peak},
                                                                                {"after backward", &step.after_backward},
                                                                                {"optimizer peak", &step.optimizer_peak},
                                                                                {"step ends", &step.end}}};
  std::string text = fmt::format("{:<20}", "memory of one rank");
  for (const auto& [title, level] : columns) text += fmt::format(" {:>14}", title);
  text += '\n';
  const auto add_row = [&](std::string_view name, auto&& bytes_of) {
    text += fmt::format("{:<20}", name);
    for (const auto& [title, level] : columns) {
      const std::int64_t bytes = bytes_of(*level);
      text += fmt::format(" {:>14}", bytes == 0 ? "-" : format_bytes(bytes));
    }
    text += '\n';
  };
  for (std::size_t i = 0; i < kNumMemoryRoles; ++i) {
    if (std::ranges::all_of(columns, [&](const auto& column) { return column.second->by_role[i] == 0; })) continue;
    add_row(memory_role_name(static_cast<MemoryRole>(i)), [i](const MemoryLevel& level) { return level.by_role[i]; });
  }
  add_row("total", [](const MemoryLevel& level) { return level.total; });
  const std::int64_t last = std::max({step.forward_peak.total, step.backward_peak.total, step.optimizer_peak.total});
  const std::string_view where = last == step.backward_peak.total  ? "backward"
                                 : last == step.forward_peak.total ? "forward"
                                                                   : "the optimizer's step";
  text += fmt::format("peak {} ({} bytes), in {}; within a phase roles peak at different moments\n", format_bytes(peak), peak, where);
  if (offloaded > 0) text += fmt::format("in the offload tier {} more\n", format_bytes(offloaded));
  return text;
}

}  // namespace mica::plan
