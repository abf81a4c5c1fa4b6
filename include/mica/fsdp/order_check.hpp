// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mica::fsdp {

class Unit;
class DeviceMesh;

/// Ranks whose units run in different orders would wait for each other's collectives forever. [Note: order check] In the first
/// training step, before each unit's forward, backward and reduction, every rank says which unit it is about to use, in one
/// small all-gather for which the host waits; a difference is an error on all ranks (docs/parity.md D4, D13). Before a forward
/// or a backward it also says which units are unsharded and what is prefetched: ranks with different prefetch lists, options or
/// manual unshards would receive each other's blocks. Reductions are compared in the first backward that reduces, and in
/// original-parameter mode with them which parameters have a gradient: one that is absent on some ranks only would be stepped
/// in parts (docs/parity.md C3). Later steps are compared with the first one without communication: the first step that
/// deviates logs a warning, once per deviation.
class OrderCheck {
 public:
  OrderCheck(DeviceMesh& device_mesh, const std::vector<Unit*>& units, bool use_orig_params);

  void begin_forward();
  /// A unit is about to be unsharded manually. @throws as forward()
  void unshard(const Unit& unit);
  /// A unit's training forward. @throws Error naming two ranks and their units' parameters, or what they gather.
  void forward(const Unit& unit);
  /// A unit's backward, or its recomputed forward inside a checkpointed backward. @throws as forward()
  void backward(const Unit& unit);
  /// A unit is about to be reduced. @throws as forward(), or Error naming a parameter and two ranks of which one has no
  /// gradient for it.
  void reduction(const Unit& unit);
  /// The pass ends on this rank. @param reduces  false under no_sync.
  /// @throws Error if another rank still has a unit to reduce.
  void end_backward(bool reduces);
  /// Whether a backward with a reduction has ended.
  [[nodiscard]] bool has_reduced() const { return first_.has_reduced; }
  /// The running step will be repeated.
  void forget_step();
  /// The next step is checked as a first one.
  void forget_first_step() { first_ = {}; }

 private:
  /// What the first step has recorded so far.
  struct FirstStep {
    bool is_running = true;          // units are compared at each use
    bool has_reduced = false;        // its reductions have been compared
    std::vector<std::size_t> order;  // of its forwards
    std::vector<std::int64_t> num_parameters;
  };
  enum class Point : std::int64_t { unshard, forward, backward, reduction, end_of_backward };
  void compare(Point point, const Unit* unit);
  [[nodiscard]] int world_rank_of(std::ptrdiff_t mesh_rank) const;
  [[nodiscard]] std::string gathers_of(Point point, const Unit& unit) const;
  void compare_gradients(const Unit& unit);
  void warn_of_deviation(const Unit& unit);

  DeviceMesh& device_mesh_;
  const std::vector<Unit*>& units_;
  bool is_needed_;  // more than one rank
  bool use_orig_params_;
  FirstStep first_;
  std::vector<std::size_t> order_;  // forwards of this pass so far
  enum class Deviation : std::uint8_t { none_yet, in_this_step, over } deviation_ = Deviation::none_yet;
};

}  // namespace mica::fsdp
