#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::optim {

/// One kind of optimizer state of one unit: as long as the unit's shard, element i belonging to master element i.
struct StateShard {
  std::string kind;  ///< "exp_avg", "exp_avg_sq", "momentum_buffer": as PyTorch names them
  const fsdp::FlatParameter* flat;
  TensorView data;  // [flat->layout().shard_numel()] f32
};

struct StepArgs {
  double lr = 0;
  ConstTensorView grad_scale;  ///< [1] f32 multiplied into every gradient (clip coefficient), or absent
  ConstTensorView skip;        ///< [1] f32, not 0: the step changes nothing, or absent
};

/// Steps the masters of a root's units on the compute stream. Walks pieces, never padding.
/// State is allocated per unit at its first step, or by allocate_state() before a checkpoint is read into it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One step over every parameter that has a gradient. Call between passes.
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

 protected:
  explicit Optimizer(fsdp::Root& root) : root_(root) {}

  /// One piece; `state` has the piece's part of each kind.
  virtual void step_piece(const fsdp::ShardedParameter& parameter, const std::vector<TensorView>& state,
                          const StepArgs& args, bool decays) = 0;

  fsdp::Root& root_;

 private:
  struct UnitState {
    const fsdp::FlatParameter* flat;
    std::vector<Buffer> buffers;  // one a kind
  };
  UnitState& state_of(const fsdp::FlatParameter* flat);

  std::vector<UnitState> units_;
  std::int64_t num_steps_ = 0;
};

/// Which parameters decay: by default Parameter::weight_decay (matrices yes; biases and norms no).
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decoupled = true;  ///< false: Adam, the decay is added to the gradient
};
[[nodiscard]] std::unique_ptr<Optimizer> make_adamw(fsdp::Root& root, const AdamWOptions& options);

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
[[nodiscard]] std::unique_ptr<Optimizer> make_sgd(fsdp::Root& root, const SgdOptions& options);

}  // namespace mica::optim
