// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "mica/fsdp/options.hpp"
#include "mica/fsdp/order_check.hpp"
#include "mica/fsdp/prefetch.hpp"
#include "mica/fsdp/rate_limiter.hpp"
#include "mica/fsdp/unit_storage.hpp"

namespace mica::fsdp {

class Unit;

/// Where a root is in its step (docs/parity.md D15).
enum class TrainingState : std::uint8_t { idle, forward, backward, summon };
[[nodiscard]] std::string_view training_state_name(TrainingState state);

/// A forward of a unit whose backward has not run. May outlive the step and the unit.
class OutstandingCall {
 public:
  /// @param count  of the unit's outstanding calls.
  OutstandingCall(std::shared_ptr<int> count, bool full_precision) : count_(std::move(count)), full_precision_(full_precision) {
    ++*count_;
  }
  OutstandingCall(const OutstandingCall&) = delete;
  OutstandingCall& operator=(const OutstandingCall&) = delete;
  ~OutstandingCall() { --*count_; }
  /// Whether the forward, and so its backward, runs in fp32 instead of param_dtype.
  [[nodiscard]] bool full_precision() const { return full_precision_; }

 private:
  std::shared_ptr<int> count_;
  bool full_precision_;
};

/// When units are gathered, resharded and reduced, and which stream waits for what: [Note: a unit's step].
/// Owns everything that changes during a step except storage and optimizer state. Called by Unit's hooks and by BackwardPass,
/// NoSync and SummonFullParams. It only enqueues; the host waits in the rate limiters and in the first step's order check.
class Schedule {
 public:
  /// @param units  all of the root, the root unit first, by index; may still be empty. They outlive it.
  Schedule(DeviceMesh& device_mesh, const std::vector<Unit*>& units, const RootOptions& options);
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  [[nodiscard]] TrainingState state() const { return state_; }
  /// Precision of the running forward, or of the call whose backward is running.
  [[nodiscard]] bool full_precision() const { return full_precision_; }

  // --- the pass: the root unit's hooks, and BackwardPass

  void begin_forward(bool is_training);
  /// @param leaves_record  whether it was a training forward.
  void end_forward(bool leaves_record);
  /// Does nothing if a backward is running already.
  void begin_backward();
  /// Reshards and reduces what is left; the compute stream waits for the reductions.
  void end_backward();
  /// While on, the root unit's backward does not end the pass, because others follow.
  void hold_backward_open(bool on) { backward_is_held_open_ = on; }
  void begin_summon() { state_ = TrainingState::summon; }
  void end_summon() { state_ = TrainingState::idle; }

  // --- a unit's hooks

  /// @throws Error if the unit's forward (backward) may not run in the current pass.
  void require_forward(const Unit& unit) const;
  void require_backward(const Unit& unit) const;
  /// For a forward that leaves a Record: its backward will follow.
  [[nodiscard]] std::unique_ptr<OutstandingCall> open_call(const Unit& unit);
  /// Gathers the unit and prefetches what follows it. @param backward_comes  whether it is a training forward.
  void enter_forward(Unit& unit, bool backward_comes);
  /// Gathers the unit for its recomputed forward inside a checkpointed backward.
  void enter_recomputed_forward(Unit& unit);
  /// Reshards the unit, unless its strategy keeps parameters for the backward.
  void leave_forward(Unit& unit, bool backward_comes);
  /// Gathers the unit and allocates storage for its gradients. @param call  null: gradients do not pass through the unit.
  void enter_backward(Unit& unit, const OutstandingCall* call);
  /// After the unit's last outstanding call: reshards and reduces it.
  void leave_backward(Unit& unit);

  // --- between passes

  void unshard(Unit& unit);
  void reshard(Unit& unit);
  void reshard_all();
  /// May be called during stack unwinding out of a pass.
  void set_gradient_sync(bool on) { gradient_sync_ = on; }
  [[nodiscard]] bool gradient_sync() const { return gradient_sync_; }
  void set_after_reduction(std::function<void(UnitStorage& storage)> callback) { after_reduction_ = std::move(callback); }
  [[nodiscard]] bool has_after_reduction() const { return static_cast<bool>(after_reduction_); }
  void set_after_backward(std::function<void()> callback) { after_backward_ = std::move(callback); }

  // --- steps

  /// The gradients are no longer needed (Root::zero_grad()).
  void end_step();
  /// Whether a step with a backward that reduced has ended and its work has run, so that later steps follow its order. The host
  /// waits for that work.
  [[nodiscard]] bool is_first_step_over() const { return first_step_end_ && !first_step_end_->has_failed(); }
  /// Drops all outstanding calls, unsharded parameters and gradients. The streams are drained.
  /// @param is_first_step_over  its value before the streams' errors were cleared; if false, the first step's order is
  /// forgotten.
  void abandon_step(bool is_first_step_over);

 private:
  /// Of one unit.
  struct UnitStep {
    /// Shared with the calls, which may outlive the step.
    std::shared_ptr<int> num_outstanding = std::make_shared<int>(0);
    Unit* next_in_backward = nullptr;
  };
  /// @throws Error for a unit of another root.
  void require_own(const Unit& unit) const;
  [[nodiscard]] UnitStep& step_of(const Unit& unit);
  /// The next step is compared and recorded as a first one.
  void forget_first_step();
  [[nodiscard]] bool is_outstanding(const Unit& unit) { return *step_of(unit).num_outstanding > 0; }
  [[nodiscard]] bool is_root(const Unit& unit) const { return &unit == units_.front(); }
  [[nodiscard]] bool reshards_after_backward(const Unit& unit) const;
  /// Once, before the first forward of a training.
  void share_grads();
  /// Makes casts and gathers wait for masters that the compute stream may still write.
  void wait_for_masters();
  void gather(const Unit& unit);
  /// Gathers the unit; the compute stream waits for it.
  void gather_and_expose(const Unit& unit);
  void prefetch_forward(const Unit& unit);
  void prefetch_backward(const Unit& unit);
  void reduce(const Unit& unit);

  DeviceMesh& device_mesh_;
  const std::vector<Unit*>& units_;
  std::vector<UnitStep> steps_;  // by unit
  TrainingState state_ = TrainingState::idle;
  ExecutionOrder order_;
  OrderCheck order_check_;
  RateLimiter param_limiter_;
  RateLimiter grad_limiter_;
  std::function<void(UnitStorage&)> after_reduction_;
  std::function<void()> after_backward_;
  std::optional<Event> first_step_end_;
  int epoch_ = 0;                    // of the mesh, when the first step was recorded
  bool masters_may_change_ = false;  // since streams last waited for them
  bool has_shared_grads_ = false;
  bool gradient_sync_ = true;
  bool backward_is_held_open_ = false;
  bool full_precision_in_eval_;
  bool full_precision_ = false;
};

}  // namespace mica::fsdp
