#pragma once

#include <cstdint>
#include <memory>
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

struct StepArgs {
  double lr = 0;
  ConstTensorView grad_scale{};  ///< [1] f32 multiplied into every gradient (clip coefficient), or absent
  ConstTensorView skip{};        ///< [1] f32, not 0: the step changes nothing, or absent
  ConstTensorView skipped_steps{};  ///< [1] f32, steps of num_steps() that changed nothing, or absent
};

/// Steps the masters of a root's units on the compute stream. [Note: optimizer]
/// - It walks pieces, never padding; pieces that lie side by side and decay alike go into one kernel call.
/// - A unit without gradients in a step is left alone, its state too. A parameter of a unit with gradients whose own
///   backward did not run has zero gradients: it decays and its momentum goes on. Frozen parameters are never touched.
/// - State is allocated per unit at its first step, or by allocate_state() before a checkpoint is read into it. Only
///   trainable units have state.
/// - Bias correction counts the optimizer's steps, for units that joined later too. The host does not read `skip`, so
///   num_steps() counts skipped steps; kernels take StepArgs::skipped_steps off it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step over every parameter that has a gradient. Call between passes. When it throws, nothing was changed.
  /// @throws Error naming the state when the root is in a pass; ConfigError for a learning rate that is no number >= 0.
  void step(const StepArgs& args);
  /// Steps so far (1 after the first): bias correction.
  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  void set_num_steps(std::int64_t steps) { num_steps_ = steps; }

  /// Kinds of state, in the order they are stored: {} for plain SGD.
  [[nodiscard]] virtual std::vector<std::string> state_kinds() const = 0;
  /// Allocates and zeroes what is not there yet.
  void allocate_state();
  /// Whatever is allocated, unit by unit in module order.
  [[nodiscard]] std::vector<StateShard> state() const;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Workspace that a step takes while it is enqueued: for the memory plan.
  [[nodiscard]] std::int64_t workspace_bytes() const { return workspace_numel() * dtype_bytes(DType::f32); }

 protected:
  /// @param root          outlives the optimizer.
  /// @param weight_decay  of the parameters that decay (nn::Parameter::weight_decay).
  Optimizer(fsdp::Root& root, double weight_decay);

  /// Elements that lie side by side in one unit's shard and are stepped alike. n = param.numel().
  struct Run {
    TensorView param;               // [n] f32 master
    ConstTensorView grad;           // [n] f32
    std::vector<TensorView> state;  // one a kind, each [n] f32
    TensorView workspace;           // [workspace_numel()] f32, anything in it
    double weight_decay = 0;
    bool is_first = false;  ///< no step has used this state yet
  };
  /// Enqueues on the compute stream.
  virtual void step_run(const Run& run, const StepArgs& args) = 0;
  /// Throws when these arguments cannot be served.
  virtual void check(const StepArgs&) const {}
  /// Elements of Run::workspace.
  [[nodiscard]] virtual std::int64_t workspace_numel() const { return 0; }

  [[nodiscard]] fsdp::DeviceMesh& device_mesh() const { return root_.device_mesh(); }

 private:
  struct OwnPiece {
    const nn::Parameter* parameter;
    std::int64_t offset, numel;  // in the unit's shard
  };
  struct UnitState {
    const fsdp::UnitStorage* storage;
    std::vector<OwnPiece> pieces;
    std::vector<Buffer> buffers;  // one a kind, once allocated
    bool is_allocated = false;
    bool was_allocated_ahead = false;  // by allocate_state()
    bool has_stepped = false;
  };
  void allocate(UnitState& unit);
  void step_unit(UnitState& unit, const StepArgs& args, TensorView workspace);
  [[nodiscard]] double decay_of(const OwnPiece& piece) const {
    return piece.parameter->weight_decay ? weight_decay_ : 0;
  }
  [[nodiscard]] static TensorView view_of(const UnitState& unit, std::size_t kind);

  fsdp::Root& root_;
  double weight_decay_;
  std::vector<UnitState> units_;
  std::int64_t num_steps_ = 0;
};

/// Which parameters decay: by default Parameter::weight_decay (matrices yes; biases and norms no).
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decoupled = true;  ///< false: Adam, the decay is added to the gradient
};
/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization"; with decoupled=false Kingma and Ba's Adam with L2.
/// @throws ConfigError naming the option.
[[nodiscard]] std::unique_ptr<Optimizer> make_adamw(fsdp::Root& root, const AdamWOptions& options);

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
/// d = g + weight_decay*p; buffer = momentum*buffer + (1-dampening)*d, d in a unit's first step;
/// p -= lr * (nesterov ? d + momentum*buffer : buffer); without momentum p -= lr*d.
/// @throws ConfigError naming the option.
[[nodiscard]] std::unique_ptr<Optimizer> make_sgd(fsdp::Root& root, const SgdOptions& options);

}  // namespace mica::optim
