// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mica/plan/step_walk.hpp"

namespace mica::plan {

using BytesByRole = std::array<std::int64_t, kNumMemoryRoles>;

/// Bytes that one rank holds at one point of a step.
struct MemoryPoint {
  BytesByRole by_role{};
  [[nodiscard]] std::int64_t of(MemoryRole role) const { return by_role[static_cast<std::size_t>(role)]; }
  [[nodiscard]] std::int64_t total() const;
};

/// A peak is the moment with the highest total within forward, within backward, or within clipping and optimizer.
struct StepMemory {
  MemoryPoint start;
  MemoryPoint forward_peak;
  MemoryPoint backward_peak;
  MemoryPoint after_backward;
  MemoryPoint optimizer_peak;
  MemoryPoint after_step;
  MemoryPoint after_zero_grad;
};

/// Bytes of one rank as its pool will count them (Pool::stats()); exact if the profile is.
struct MemoryPlan {
  StepMemory first_step;  ///< optimizer state is first allocated in its optimizer step
  StepMemory later_step;  ///< all steps after the first
  std::int64_t peak = 0;  ///< highest total of the run
  BytesByRole peak_by_role{};
  std::int64_t offloaded = 0;  ///< in addition, in the offload tier: masters, gradients, optimizer state

  [[nodiscard]] std::int64_t peak_of(MemoryRole role) const { return peak_by_role[static_cast<std::size_t>(role)]; }
};

/// The memory formula (docs/design.md, Invariants 2), computed by walking the schedule: [Note: memory formula]
/// With P_u = shard elements of unit u, S = shard ranks, m and r the bytes of param and reduce dtype, K kinds of state:
///   masters 4*sum(P_u); gradients 4*sum(P_u) (r*sum(P_u) when kept in low precision) from backward to zero_grad; state
///   4*K*sum(P_u) from the first step on; unsharded parameters m*S*P_u of the root unit and of the largest sum of up to
///   3 neighbouring units: the one that computes, the one being gathered (prefetch), and, with threaded streams, the
///   one whose storage is kept back so that the gather need not wait for it (0 where masters are shared: each rank counts its
///   own part of them). Strategies that keep parameters hold all
///   units' instead; unsharded gradients r*S*P_u of the root unit, of the one that computes and, threaded, of the one
///   being reduced (a single rank needs none of them if they can become the sharded ones); one shard in param_dtype
///   while it is cast; and the model's activations, workspace and staging on top.
/// @param profile  one micro-batch's.
[[nodiscard]] MemoryPlan make_memory_plan(const std::vector<UnitSpec>& units, const StepSpec& spec, const PassProfile& profile);

/// "512 B", "1.50 KiB", "340.2 MiB", "1.25 GiB".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

/// The start-up table: a row for each role in use, a column for each point of a later step, and the peak.
[[nodiscard]] std::string format_memory_plan(const MemoryPlan& plan);

}  // namespace mica::plan
