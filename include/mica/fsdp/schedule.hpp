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
  OutstandingCall(std::shared_ptr<int> count, bool full_precision)
      : count_(std::move(count)), full_precision_(full_precision) {
    ++*count_;
  }
  OutstandingCall(const OutstandingCall&) = delete;
  OutstandingCall& operator=(const OutstandingCall&) = delete;
  ~OutstandingCall() { --*count_; }
  /// Of the forward, and so of its backward: fp32 instead of param_dtype.
  [[nodiscard]] bool full_precision() const { return full_precision_; }

 private:
  std::shared_ptr<int> count_;
  bool full_precision_;
};

/// When units are gathered, resharded and reduced, and which stream waits for what: [Note: a unit's step].
/// Owns what changes in a step, but for storage and the optimizer's state. Called by Unit's hooks and by scopes on a root
/// (BackwardPass, NoSync, SummonFullParams). Everything enqueues; the host waits in the rate limiters and in the first
/// step's order check.
class Schedule {
 public:
  /// @param units  of the root, itself first, each with its index; may still be empty. They outlive it.
  Schedule(DeviceMesh& device_mesh, const std::vector<Unit*>& units, const RootOptions& options);
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  [[nodiscard]] TrainingState state() const { return state_; }
  /// Of the forward that runs, or of the call whose backward runs.
  [[nodiscard]] bool full_precision() const { return full_precision_; }

  // --- the pass: the root unit's hooks, and BackwardPass

  void begin_forward(bool is_training);
  /// @param leaves_record  it was a training forward.
  void end_forward(bool leaves_record);
  /// Nothing if a backward runs already.
  void begin_backward();
  /// Reshards and reduces what is left; the compute stream waits for the reductions.
  void end_backward();
  /// While it is on, the root unit's backward does not end the pass: others come.
  void hold_backward_open(bool on) { backward_is_held_open_ = on; }
  void begin_summon() { state_ = TrainingState::summon; }
  void end_summon() { state_ = TrainingState::idle; }

  // --- a unit's hooks

  /// @throws Error when the pass is not one in which the unit's forward (backward) may run.
  void require_forward(const Unit& unit) const;
  void require_backward(const Unit& unit) const;
  /// The forward leaves a Record: backward comes.
  [[nodiscard]] std::unique_ptr<OutstandingCall> open_call(const Unit& unit);
  /// Gathers the unit, and ahead what follows it. @param backward_comes  the forward of a training.
  void enter_forward(Unit& unit, bool backward_comes);
  /// Gathers the unit for its forward again inside a checkpointed backward.
  void enter_recomputed_forward(Unit& unit);
  /// Reshards the unit, unless its strategy keeps parameters for the backward.
  void leave_forward(Unit& unit, bool backward_comes);
  /// Gathers the unit, and storage for its gradients. @param call  null: gradients do not pass through the unit.
  void enter_backward(Unit& unit, const OutstandingCall* call);
  /// Behind the unit's last outstanding call: reshards and reduces it.
  void leave_backward(Unit& unit);

  // --- between passes

  void unshard(Unit& unit);
  void reshard(Unit& unit);
  void reshard_all();
  /// May be called while an exception leaves a pass.
  void set_gradient_sync(bool on) { gradient_sync_ = on; }
  [[nodiscard]] bool gradient_sync() const { return gradient_sync_; }
  void set_after_reduction(std::function<void(UnitStorage& storage)> callback) { after_reduction_ = std::move(callback); }
  [[nodiscard]] bool has_after_reduction() const { return static_cast<bool>(after_reduction_); }
  void set_after_backward(std::function<void()> callback) { after_backward_ = std::move(callback); }

  // --- steps

  /// The gradients are no longer needed (Root::zero_grad()).
  void end_step();
  /// Whether a step with a backward that reduced has ended, and its work has run: its order is the one that later steps
  /// follow. The host waits for that work.
  [[nodiscard]] bool is_first_step_over() const { return first_step_end_ && !first_step_end_->has_failed(); }
  /// Nothing is outstanding or unsharded any more, and there are no gradients. The streams are drained.
  /// @param is_first_step_over  what it was before the streams' errors were cleared; if not, its order is forgotten.
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
  /// The next step is compared and recorded as the first one.
  void forget_first_step();
  [[nodiscard]] bool is_outstanding(const Unit& unit) { return *step_of(unit).num_outstanding > 0; }
  [[nodiscard]] bool is_root(const Unit& unit) const { return &unit == units_.front(); }
  [[nodiscard]] bool reshards_after_backward(const Unit& unit) const;
  /// No cast and no gather reads masters that the compute stream may still write.
  void wait_for_masters();
  void gather(const Unit& unit);
  /// The same, and the compute stream waits for it.
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
  int epoch_ = 0;  // of the mesh, when the first step was recorded
  bool masters_may_change_ = false;  // since streams last waited for them
  bool gradient_sync_ = true;
  bool backward_is_held_open_ = false;
  bool full_precision_in_eval_;
  bool full_precision_ = false;
};

}  // namespace mica::fsdp
