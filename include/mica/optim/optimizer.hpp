// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mica/fsdp/root.hpp"
#include "mica/optim/moment_precision.hpp"

namespace mica::optim {

/// One kind of optimizer state of one unit: as long as the unit's shard; element i belongs to master element i.
struct StateShard {
  std::string kind;  ///< PyTorch's names: "exp_avg", "exp_avg_sq", "momentum_buffer"
  const fsdp::UnitStorage* storage;
  TensorView data;  // [storage->layout().shard_numel()] of the kind's dtype
};

/// One kind of state of an ignored parameter; whole on every rank.
struct IgnoredState {
  std::string kind;
  std::string parameter;  ///< full name
  TensorView data;        // [numel] of the kind's dtype
};

struct StepArgs {
  double lr = 0;
  ConstTensorView grad_scale{};     ///< [1] f32 multiplied into every gradient (clip coefficient), or absent
  ConstTensorView skip{};           ///< [1] f32, not 0: the step changes nothing, or absent
  ConstTensorView skipped_steps{};  ///< [1] f32, steps of num_steps() that changed nothing, or absent
};

/// Parameters, by full name, with options that differ from the optimizer's.
struct ParamGroup {
  std::vector<std::string> parameters;
  double lr_factor = 1;                ///< times StepArgs::lr
  std::optional<double> weight_decay;  ///< for all of them; unset: the optimizer's, for those with Parameter::weight_decay
  std::optional<double> beta1, beta2;  ///< of AdamW and Adam
};

/// Steps the masters of a root's units on the compute stream. [Note: optimizer]
/// - It walks pieces, never padding. Adjacent pieces with equal arguments become one run, and all runs of a step go into one
///   kernel call (those of an offloaded unit into a separate one, so that its next all-gather need not wait for the others).
/// - A unit without gradients in a step is not changed, nor is its state. If a unit has gradients but the backward of one of
///   its parameters did not run, that parameter has no gradient in original-parameter mode and is not changed either; otherwise
///   it has zero gradients, so that it decays and its momentum continues. Frozen parameters are never changed.
/// - Ignored parameters (fsdp::Options::ignored_parameters) are stepped whole on every rank if their owner has set
///   Parameter::grad and a backward has written it; data and gradient are fp32. The owner clears grad_written.
/// - Gradients kept in low precision are converted to fp32 in workspace, a chunk at a time; the result is the same as if they
///   had been converted before.
/// - Offloaded masters are stepped by the CPU, with their state in host memory (docs/parity.md D9); if units compute on another
///   device, the host waits for the compute stream first.
/// - State is allocated per unit at its first step, or by allocate_state() before a checkpoint is read into it. Only units
///   with a trainable parameter in a group have state.
/// - Bias correction counts each parameter's own steps. The host does not read `skip`, so counts include skipped steps; kernels
///   subtract StepArgs::skipped_steps. (The host waits for that number in two cases: in the first step that has it, also after
///   set_num_steps(), since steps skipped before were not this optimizer's; and when the set of parameters with gradients
///   changes, since skipped steps then count for some parameters only.)
/// - fsdp::Root::abandon_step() undoes host changes of a step whose kernels did not run.
class Optimizer : private fsdp::StepParty {
 public:
  ~Optimizer() override = default;

  /// One step over every parameter that has a gradient. Call between passes. If it throws, nothing was changed.
  /// @throws Error naming the state if the root is in a pass; ConfigError for a learning rate that is not a number >= 0.
  void step(const StepArgs& args);
  /// Steps so far (1 after the first).
  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  /// Sets the count of the optimizer and of all its parameters, before state is loaded.
  void set_num_steps(std::int64_t steps);
  /// Step counts of the parameters whose count differs from num_steps(), because they had no gradient in some steps or are
  /// frozen. Known on every rank.
  [[nodiscard]] std::map<std::string, std::int64_t> parameter_steps() const;
  /// @throws CheckpointError naming a parameter that is not the optimizer's.
  void set_parameter_steps(const std::map<std::string, std::int64_t>& steps);
  /// Subtracts skipped steps from num_steps() and the parameters' counts, when StepArgs::skipped_steps is `skipped_so_far`.
  void take_off_skipped_steps(std::int64_t skipped_so_far);

  /// Every parameter that it steps is in one of these. If the user gave no groups: one, in module order.
  [[nodiscard]] const std::vector<ParamGroup>& groups() const { return groups_; }
  /// A group's options by name, with the values that unset ones have: "lr_factor", "weight_decay", ...
  [[nodiscard]] virtual std::map<std::string, double> group_options(const ParamGroup& group) const = 0;

  /// Kinds of state, in the order they are stored: {} for plain SGD.
  [[nodiscard]] virtual std::vector<std::string> state_kinds() const = 0;
  /// Their dtypes, in the same order.
  [[nodiscard]] std::vector<DType> state_dtypes() const;
  /// Whether a parameter's step count is part of its state.
  [[nodiscard]] virtual bool counts_steps() const = 0;
  /// Allocates and zeroes state that does not exist yet.
  void allocate_state();
  /// All allocated state, unit by unit in module order.
  [[nodiscard]] std::vector<StateShard> state() const;
  /// The same of ignored parameters.
  [[nodiscard]] std::vector<IgnoredState> ignored_state() const;
  /// The parameters that have a place in one of these two.
  [[nodiscard]] std::set<std::string> parameters_with_state() const;
  /// Step count of one parameter. It has state from its first step on. @throws Error if the optimizer has no such parameter.
  [[nodiscard]] std::int64_t steps_of(std::string_view parameter) const;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] fsdp::Root& root() const { return root_; }

 protected:
  /// @param root          outlives the optimizer.
  /// @param weight_decay  of the parameters that decay (nn::Parameter::weight_decay).
  /// @param groups        the parameters to step; empty: all.
  /// @throws ConfigError naming a parameter that is not in the model or is in two groups, an option out of range, or a precision that
  ///         the root's device cannot keep.
  Optimizer(fsdp::Root& root, double weight_decay, std::vector<ParamGroup> groups, MomentPrecision precision);

  /// A kernel's arguments for adjacent elements of one unit's shard. n = param.numel().
  struct RunArgs {
    TensorView param;               // [n] f32 master
    ConstTensorView grad;           // [n] f32
    std::vector<TensorView> state;  // one a kind, each [n] of the kind's dtype
    TensorView workspace;           // [run_workspace_numel()] f32, uninitialised
    const ParamGroup* group = nullptr;
    double lr = 0;
    double weight_decay = 0;
    std::int64_t step = 0;  ///< 1 in their first step; StepArgs::skipped_steps still to be subtracted
    bool is_first = false;  ///< whether no step has used this state yet
    Stream* stream = nullptr;
    Kernels* kernels = nullptr;  ///< of the stream's device
  };
  /// Enqueues on the runs' stream, which they share. A run may be given in several parts, in consecutive calls.
  virtual void step_runs(std::span<const RunArgs> runs, const StepArgs& args) = 0;
  /// Throws if the optimizer does not support these arguments.
  virtual void check(const StepArgs&) const {}
  /// Elements of RunArgs::workspace.
  [[nodiscard]] virtual std::int64_t run_workspace_numel() const { return 0; }
  /// Elements that a step needs: a run's workspace, and space to convert gradients kept in low precision.
  [[nodiscard]] std::int64_t workspace_numel() const;

  [[nodiscard]] fsdp::DeviceMesh& device_mesh() const { return root_.device_mesh(); }

 private:
  friend class OptimizerInBackward;

  struct Member {  // a parameter of a unit
    nn::Parameter* parameter;
    std::string name;
    int group = -1;  // -1: in none, and not stepped
    std::int64_t steps = 0;
    bool took_part = false;  // in the latest step
    /// Whether a step changes it if it has a gradient.
    [[nodiscard]] bool is_stepped() const { return group >= 0 && parameter->requires_grad; }
  };
  /// A unit; or one ignored parameter, with no storage and one member.
  struct UnitState {
    const fsdp::UnitStorage* storage;
    std::vector<Member> members;      // in the order of storage->parameters()
    std::vector<fsdp::Piece> pieces;  // of this rank; their parameters are members
    std::vector<Tensor> state;        // one a kind, [numel_of()], once allocated
    bool is_allocated = false;

    /// Its host counters that a step changes.
    struct Counts {
      std::vector<std::int64_t> steps;  // by member, as the next
      std::vector<bool> took_part;
      bool is_allocated = false;
    };
    [[nodiscard]] Counts counts() const;
    void restore(const Counts& before);
  };
  /// All host counters that a step changes.
  struct StepCounts {
    std::int64_t num_steps = 0;
    std::optional<std::int64_t> skipped_taken_off;
    std::vector<UnitState::Counts> units;
  };
  [[nodiscard]] std::any remember() const override;
  void restore(const std::any& memo) override;
  void add_units();
  void assign_groups();
  void check_args(const StepArgs& args) const;
  [[nodiscard]] static bool takes_part(const UnitState& unit, std::size_t member);
  [[nodiscard]] static bool any_takes_part(const UnitState& unit);
  [[nodiscard]] bool are_others_than_in_last_step() const;
  void allocate(UnitState& unit);
  [[nodiscard]] Tensor allocate_workspace(Pool& pool, Stream& stream) const;  // [workspace_numel()] f32
  void step_unit(UnitState& unit, const StepArgs& args, TensorView workspace, Stream& stream);
  /// Counts the unit's step and appends its runs; those with a gradient in low precision are stepped at once.
  void add_runs(UnitState& unit, const StepArgs& args, TensorView workspace, Stream& stream, std::vector<RunArgs>& runs);
  /// The stream on which the unit is stepped: compute, or the offload tier's.
  [[nodiscard]] Stream& stream_of(const UnitState& unit) const;
  [[nodiscard]] Kernels& kernels_on(const Stream& stream) const;
  void step_low_precision_run(const RunArgs& run, const StepArgs& args, TensorView wide);
  [[nodiscard]] bool are_stepped_alike(const Member& x, const Member& y) const;
  [[nodiscard]] double decay_of(const Member& member) const;
  [[nodiscard]] static bool has_grad(const UnitState& unit, std::size_t member);
  [[nodiscard]] static TensorView write_master(const UnitState& unit, Stream& stream);
  [[nodiscard]] static ConstTensorView grad_of(const UnitState& unit);
  [[nodiscard]] static std::int64_t numel_of(const UnitState& unit);  // on this rank
  static void check_ignored(const UnitState& unit);

  fsdp::Root& root_;
  double weight_decay_;
  MomentPrecision precision_;
  std::vector<ParamGroup> groups_;
  std::vector<UnitState> units_;
  std::int64_t num_steps_ = 0;
  std::optional<std::int64_t> skipped_taken_off_;  // of StepArgs::skipped_steps; unset: not known how many of them
};

/// By default, parameters with Parameter::weight_decay decay (matrices, but not biases and norms).
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decoupled = true;  ///< false: Adam, where the decay is added to the gradient
  MomentPrecision precision = MomentPrecision::fp32;
};
/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization"; with decoupled=false Kingma and Ba's Adam with L2.
/// @throws ConfigError naming the option.
[[nodiscard]] std::unique_ptr<Optimizer> make_adamw(fsdp::Root& root, const AdamWOptions& options, std::vector<ParamGroup> groups = {});

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  MomentPrecision precision = MomentPrecision::fp32;  ///< of the momentum
};
/// d = g + weight_decay*p; buffer = momentum*buffer + (1-dampening)*d, d in a parameter's first step;
/// p -= lr * (nesterov ? d + momentum*buffer : buffer); without momentum p -= lr*d.
/// @throws ConfigError naming the option.
[[nodiscard]] std::unique_ptr<Optimizer> make_sgd(fsdp::Root& root, const SgdOptions& options, std::vector<ParamGroup> groups = {});

}  // namespace mica::optim
