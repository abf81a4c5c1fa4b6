// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "mica/device/pool.hpp"

namespace mica::plan {

using BytesByRole = std::array<std::int64_t, kNumMemoryRoles>;

/// What a pool holds at one moment, or the most that it holds in a while. The roles' peaks may be at different moments, and then add up to
/// more than the total.
struct MemoryLevel {
  std::int64_t total = 0;
  BytesByRole by_role{};
};

/// Bytes of one rank in a step (docs/design.md, Invariants 2). [Note: memory formula]
/// With P_u = shard elements of unit u, S = shard ranks, m and r the bytes of param and reduce dtype, K kinds of state:
///   masters 4*sum(P_u); gradients 4*sum(P_u) (r*sum(P_u) when kept in low precision) from backward to zero_grad; state
///   4*K*sum(P_u) from the first step on; unsharded parameters m*S*P_u of the root unit and of the largest sum of up to
///   3 neighbouring units: the one that computes, the one being gathered (prefetch), and, with threaded streams, the
///   one whose storage is kept back so that the gather need not wait for it (0 where masters are shared: each rank counts its
///   own part of them; m*P_u all the time for units that share casts). Strategies that keep parameters hold all
///   units' instead; unsharded gradients r*S*P_u of the root unit (where ranks share those of its tables: of the other elements only, 4
///   bytes each, but its sharded gradient is there all the time), of the one that computes and, threaded, of the one being reduced (a
///   single rank needs none of them if they can become the sharded ones); one shard in param_dtype while it is cast; and the model's
///   activations, workspace and staging on top.
struct StepMemory {
  MemoryLevel start;
  MemoryLevel forward_peak, backward_peak;  ///< over all micro-batches
  MemoryLevel after_backward;
  MemoryLevel optimizer_peak;  ///< clipping included
  MemoryLevel end;             ///< after zero_grad()
};

/// Takes levels from a pool, whose peaks it resets.
class MemoryMeter {
 public:
  explicit MemoryMeter(Pool& pool);

  [[nodiscard]] MemoryLevel now() const;
  /// Since the last call, or since this meter was made.
  [[nodiscard]] MemoryLevel take_peak();
  /// The pool's counts, with peaks since this meter was made.
  [[nodiscard]] MemoryStats stats();

 private:
  void keep_peaks();

  Pool& pool_;
  MemoryStats highest_;
};

/// "512 B", "1.50 KiB", "340.2 MiB", "1.25 GiB".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

/// The start-up table: a row for each role in use, a column for each point of a step, and the peak.
/// @param peak  of the whole run  @param offloaded  bytes in the offload tier
[[nodiscard]] std::string format_memory_plan(const StepMemory& step, std::int64_t peak, std::int64_t offloaded);

}  // namespace mica::plan
