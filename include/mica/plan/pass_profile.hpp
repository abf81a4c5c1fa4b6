// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mica::plan {

/// Bytes that the model's own code holds at one moment.
struct Moment {
  std::int64_t activation = 0;
  std::int64_t workspace = 0;
  [[nodiscard]] std::int64_t total() const { return activation + workspace; }
};

/// The model's own memory use between two hooks of units. Levels count from the beginning of the pass.
struct Stretch {
  Moment peak;                       ///< the moment of the highest total
  std::int64_t activation_peak = 0;  ///< the peak of this role alone, perhaps at another moment
  std::int64_t workspace_peak = 0;
  Moment end;

  /// For cases where only the peaks are known; they are assumed to coincide.
  static Stretch of(std::int64_t activation_peak, std::int64_t activation_end, std::int64_t workspace_peak = 0) {
    return {{activation_peak, workspace_peak}, activation_peak, workspace_peak, {activation_end, 0}};
  }
  /// A constant level.
  static Stretch at(std::int64_t activation) { return of(activation, activation); }
};

enum class HookKind : std::uint8_t {
  pre_forward,
  post_forward,
  pre_backward,
  post_backward,
  recompute,  ///< the forward of a unit that runs again inside a checkpointed region
};

/// A unit's hook, and what the model did since the hook before.
struct HookPoint {
  HookKind kind;
  std::size_t unit;  ///< index in module order, the root unit is 0
  Stretch before;
  bool leaves_record = true;   ///< for forwards: false inside a checkpointed region, whose forward runs again
  bool backward_comes = true;  ///< for post_forward: false for a unit that no gradient passes through (a frozen prefix)
};

/// One micro-batch's forward and backward as the units see it: the order of the hooks, with the model's own memory in
/// between. It comes from trace_pass() or from closed formulas.
struct PassProfile {
  std::vector<HookPoint> points;
  Stretch after;  ///< after the last hook

  /// Hook order of a root unit that calls the other units one after another, each once, without activations.
  static PassProfile chain(std::size_t num_units);
};

}  // namespace mica::plan
