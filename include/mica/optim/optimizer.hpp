#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::optim {

/// One kind of optimizer state of one unit: as long as the unit's shard, element i belonging to master element i.
struct StateShard {
  std::string kind;  ///< "exp_avg", "exp_avg_sq", "momentum_buffer": as PyTorch names them
  const fsdp::UnitStorage* storage;
  TensorView data;  // [storage->layout().shard_numel()] f32
};

/// One kind of state of an ignored parameter, whole on every rank.
struct IgnoredState {
  std::string kind;
  std::string parameter;  ///< full name
  TensorView data;        // [numel] f32
};

struct StepArgs {
  double lr = 0;
  ConstTensorView grad_scale{};  ///< [1] f32 multiplied into every gradient (clip coefficient), or absent
  ConstTensorView skip{};        ///< [1] f32, not 0: the step changes nothing, or absent
  ConstTensorView skipped_steps{};  ///< [1] f32, steps of num_steps() that changed nothing, or absent
};

/// Parameters by full name that are stepped alike, and in what they differ from the optimizer's own options.
struct ParamGroup {
  std::vector<std::string> parameters;
  double lr_factor = 1;                ///< times StepArgs::lr
  std::optional<double> weight_decay;  ///< of all of them; unset: the optimizer's, of those with Parameter::weight_decay
  std::optional<double> beta1, beta2;  ///< of AdamW and Adam
};

/// Steps the masters of a root's units on the compute stream. [Note: optimizer]
/// - It walks pieces, never padding; pieces that lie side by side and are stepped alike become one run, and all runs of a
///   step go into one kernel call (those of an offloaded unit into one of their own, so that its next all-gather need
///   not wait for the others).
/// - A unit without gradients in a step is left alone, its state too. A parameter of a unit with gradients whose own
///   backward did not run: in original-parameter mode it has no gradient and is left alone as well; otherwise it has
///   zero gradients: it decays and its momentum goes on. Frozen parameters are never touched.
/// - Ignored parameters (fsdp::Options::ignored_parameters) are stepped whole on every rank while their holder has set
///   Parameter::grad and a backward has written it; data and gradient are fp32. Who clears grad_written is the holder.
/// - Gradients kept in low precision are widened to fp32 in workspace, a chunk at a time: the bits are those of
///   gradients that were widened before.
/// - Offloaded masters are stepped by the CPU, with their state beside them (docs/parity.md D9); where that is not the device,
///   the host waits for the compute stream first.
/// - State is allocated per unit at its first step, or by allocate_state() before a checkpoint is read into it. Only
///   trainable units have state.
/// - Bias correction counts each parameter's own steps. The host does not read `skip`, so counts include skipped steps;
///   kernels take StepArgs::skipped_steps off them. (The host waits for the skipped steps so far in the first step that
///   has such a count, also after set_num_steps(), since those before are none of its own; and when other parameters
///   than in the last step have gradients, since they count for some parameters and not for others.)
/// - fsdp::Root::abandon_step() takes back what a step whose kernels did not run has changed on the host.
class Optimizer : private fsdp::StepParty {
 public:
  ~Optimizer() override = default;

  /// One step over every parameter that has a gradient. Call between passes. When it throws, nothing was changed.
  /// @throws Error naming the state when the root is in a pass; ConfigError for a learning rate that is no number >= 0.
  void step(const StepArgs& args);
  /// Steps so far (1 after the first).
  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  /// Of the optimizer and of all its parameters, before state is read in.
  void set_num_steps(std::int64_t steps);
  /// Steps of each parameter that has others than num_steps(): left out at times, or frozen. Every rank knows all.
  [[nodiscard]] std::map<std::string, std::int64_t> parameter_steps() const;
  /// @throws CheckpointError naming a parameter that is not the optimizer's.
  void set_parameter_steps(const std::map<std::string, std::int64_t>& steps);
  /// Takes steps off num_steps() and the parameters' counts: StepArgs::skipped_steps has come to `skipped_so_far`.
  void take_off_skipped_steps(std::int64_t skipped_so_far);

  /// Every parameter that it steps is in one of these. Without groups of the user's: one, in module order.
  [[nodiscard]] const std::vector<ParamGroup>& groups() const { return groups_; }
  /// By name, of a group with what its unset options come to: "lr_factor", "weight_decay", ...
  [[nodiscard]] virtual std::map<std::string, double> group_options(const ParamGroup& group) const = 0;

  /// Kinds of state, in the order they are stored: {} for plain SGD.
  [[nodiscard]] virtual std::vector<std::string> state_kinds() const = 0;
  /// Whether a parameter's count of steps is part of its state.
  [[nodiscard]] virtual bool counts_steps() const = 0;
  /// Allocates and zeroes what is not there yet.
  void allocate_state();
  /// Whatever is allocated, unit by unit in module order.
  [[nodiscard]] std::vector<StateShard> state() const;
  /// The same of ignored parameters.
  [[nodiscard]] std::vector<IgnoredState> ignored_state() const;
  /// Steps of one parameter; it has state from its first one on. @throws Error for a name that is not its parameter's.
  [[nodiscard]] std::int64_t steps_of(std::string_view parameter) const;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] fsdp::Root& root() const { return root_; }
  /// Workspace that a step takes while it is enqueued: for the memory plan.
  [[nodiscard]] std::int64_t workspace_bytes() const { return workspace_numel() * dtype_bytes(DType::f32); }

 protected:
  /// @param root          outlives the optimizer.
  /// @param weight_decay  of the parameters that decay (nn::Parameter::weight_decay).
  /// @param groups        the parameters to step; empty: all.
  /// @throws ConfigError naming a parameter that is not in the model, is in two groups, or an option out of range.
  Optimizer(fsdp::Root& root, double weight_decay, std::vector<ParamGroup> groups);

  /// What the kernel gets for elements that lie side by side in one unit's shard and are stepped alike. n = param.numel().
  struct RunArgs {
    TensorView param;               // [n] f32 master
    ConstTensorView grad;           // [n] f32
    std::vector<TensorView> state;  // one a kind, each [n] f32
    TensorView workspace;           // [run_workspace_numel()] f32, anything in it
    const ParamGroup* group = nullptr;
    double lr = 0;
    double weight_decay = 0;
    std::int64_t step = 0;  ///< 1 in their first; StepArgs::skipped_steps is to be taken off
    bool is_first = false;  ///< no step has used this state yet
    Stream* stream = nullptr;
    Kernels* kernels = nullptr;  ///< of the stream's device
  };
  /// Enqueues on the runs' stream, which they share. A run may come in several parts, in calls one after the other.
  virtual void step_runs(std::span<const RunArgs> runs, const StepArgs& args) = 0;
  /// Throws when these arguments cannot be served.
  virtual void check(const StepArgs&) const {}
  /// Elements of RunArgs::workspace.
  [[nodiscard]] virtual std::int64_t run_workspace_numel() const { return 0; }
  /// What a step takes: a run's workspace, and where gradients kept in low precision are widened.
  [[nodiscard]] std::int64_t workspace_numel() const;

  [[nodiscard]] fsdp::DeviceMesh& device_mesh() const { return root_.device_mesh(); }

 private:
  friend class OptimizerInBackward;

  struct Member {  // a parameter of a unit
    nn::Parameter* parameter;
    std::string name;
    int group = -1;  // -1: it is in none and not stepped
    std::int64_t steps = 0;
    bool took_part = false;  // in the latest step
  };
  /// A unit, or one ignored parameter: then there is no storage and one member.
  struct UnitState {
    const fsdp::UnitStorage* storage;
    std::vector<Member> members;  // in the order of storage->parameters()
    std::vector<fsdp::Piece> pieces;  // of this rank; their parameters are members
    std::vector<Buffer> buffers;  // one a kind, once allocated
    bool is_allocated = false;

    /// What a step changes of it on the host.
    struct Counts {
      std::vector<std::int64_t> steps;  // by member, as the next
      std::vector<bool> took_part;
      bool is_allocated = false;
    };
    [[nodiscard]] Counts counts() const;
    void restore(const Counts& before);
  };
  /// What a step changes of all on the host.
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
  [[nodiscard]] bool are_others_than_in_last_step() const;
  void allocate(UnitState& unit);
  [[nodiscard]] Tensor allocate_workspace(Pool& pool, Stream& stream) const;  // [workspace_numel()] f32
  void step_unit(UnitState& unit, const StepArgs& args, TensorView workspace, Stream& stream);
  /// Counts the unit's step and appends its runs; those with a gradient in low precision are stepped at once.
  void add_runs(UnitState& unit, const StepArgs& args, TensorView workspace, Stream& stream, std::vector<RunArgs>& runs);
  /// Where the unit is stepped: the compute stream, or the offload tier's.
  [[nodiscard]] Stream& stream_of(const UnitState& unit) const;
  [[nodiscard]] Kernels& kernels_on(const Stream& stream) const;
  void step_low_precision_run(const RunArgs& run, const StepArgs& args, TensorView wide);
  [[nodiscard]] bool are_stepped_alike(const Member& x, const Member& y) const;
  [[nodiscard]] double decay_of(const Member& member) const;
  [[nodiscard]] static bool has_grad(const UnitState& unit, std::size_t member);
  [[nodiscard]] static bool has_any_grad(const UnitState& unit);
  [[nodiscard]] static TensorView master_of(const UnitState& unit);
  [[nodiscard]] static ConstTensorView grad_of(const UnitState& unit);
  [[nodiscard]] static std::int64_t numel_of(const UnitState& unit);  // on this rank
  static void check_ignored(const UnitState& unit);
  [[nodiscard]] static TensorView view_of(const UnitState& unit, std::size_t kind);

  fsdp::Root& root_;
  double weight_decay_;
  std::vector<ParamGroup> groups_;
  std::vector<UnitState> units_;
  std::int64_t num_steps_ = 0;
  std::optional<std::int64_t> skipped_taken_off_;  // of StepArgs::skipped_steps; unset: not known how many of them
};

/// Which parameters decay: by default Parameter::weight_decay (matrices yes; biases and norms no).
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decoupled = true;  ///< false: Adam, the decay is added to the gradient
};
/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization"; with decoupled=false Kingma and Ba's Adam with L2.
/// @throws ConfigError naming the option.
[[nodiscard]] std::unique_ptr<Optimizer> make_adamw(fsdp::Root& root, const AdamWOptions& options,
                                                    std::vector<ParamGroup> groups = {});

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
/// d = g + weight_decay*p; buffer = momentum*buffer + (1-dampening)*d, d in a parameter's first step;
/// p -= lr * (nesterov ? d + momentum*buffer : buffer); without momentum p -= lr*d.
/// @throws ConfigError naming the option.
[[nodiscard]] std::unique_ptr<Optimizer> make_sgd(fsdp::Root& root, const SgdOptions& options,
                                                  std::vector<ParamGroup> groups = {});

}  // namespace mica::optim
