#pragma once

#include <string>
#include <vector>

#include "mica/fsdp/device_mesh.hpp"
#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/fsdp/options.hpp"
#include "mica/fsdp/rate_limiter.hpp"
#include "mica/fsdp/shard_layout.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// A parameter of a unit under its full name.
struct UnitParameter {
  std::string full_name;
  nn::Parameter* parameter;
};

/// The storage of one unit and what moves it. [Note: unit storage]
/// S = shard size, P = layout().shard_numel().
///   master          [P]   f32         sharded_param        always there once allocated
///   low precision   [P]   param_dtype low_precision_shard  from the cast until its all-gather
///   unsharded       [S*P] param_dtype unsharded_param      between unshard() and reshard(); with S = 1 and fp32 it IS the master
///   unsharded grad  [S*P] reduce_dtype unsharded_grad      between prepare_grads() and reduce_grads()
///   sharded grad    [P]   f32         sharded_grad         from the first reduce_grads() until zero_grad()
/// Everything enqueues; the host waits only in the rate limiters.
class UnitStorage {
 public:
  /// @param name  the unit's, for labels and errors; e.g. "transformer.h.0".
  UnitStorage(std::string name, std::vector<UnitParameter> parameters, DeviceMesh& device_mesh, const Options& options);
  ~UnitStorage();

  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<UnitParameter>& parameters() const { return parameters_; }
  [[nodiscard]] int shard_rank() const { return shard_rank_; }
  [[nodiscard]] int shard_size() const { return layout_.shard_size(); }
  [[nodiscard]] bool is_trainable() const;

  /// Allocates the master and fills this rank's pieces with their initial values.
  void initialize(std::uint64_t seed);
  [[nodiscard]] bool is_initialized() const { return static_cast<bool>(master_buffer_); }
  [[nodiscard]] TensorView master() const { return master_; }  // [P] f32

  /// Enqueues the cast and the all-gather; nothing if already unsharded.
  void unshard(RateLimiter& limiter);
  [[nodiscard]] bool is_unsharded() const { return is_unsharded_; }
  /// The compute stream waits for the parameters, and the module sees them.
  void expose();
  /// Gives the unsharded storage back. The compute stream's work so far was its last reader.
  void reshard(RateLimiter& limiter);

  /// Makes sure that the module can write gradients. Written ones stay (no_sync accumulates in them).
  void prepare_grads(RateLimiter& limiter);
  [[nodiscard]] bool has_unsharded_grad() const { return static_cast<bool>(unsharded_grad_buffer_); }
  /// Averages the unsharded gradient over the world into the sharded gradient, adding to what is there.
  void reduce_grads(RateLimiter& limiter);
  /// [P] f32, absent before the first reduction. Valid on the compute stream after the backward pass has ended.
  [[nodiscard]] TensorView sharded_grad() const { return sharded_grad_; }
  /// Whether the i-th parameter has a sharded gradient. In original-parameter mode one whose backward has not run since
  /// zero_grad() has none (which must be so on all ranks alike); otherwise its part of the gradient is zero.
  [[nodiscard]] bool has_grad(std::size_t i) const { return has_grads_[i]; }
  /// Frees the sharded gradient; the compute stream's work so far was its last reader.
  void zero_grad();
  /// Drops unsharded parameters and all gradients without any communication (abandon_step).
  void drop_step();

 private:
  [[nodiscard]] bool aliases_master() const { return layout_.shard_size() == 1 && param_dtype_ == DType::f32; }
  void hide_grads();
  void note_written_grads();
  void zero_unwritten_grads();

  std::string name_;
  std::vector<UnitParameter> parameters_;
  DeviceMesh& device_mesh_;
  DType param_dtype_;
  DType reduce_dtype_;
  bool use_orig_params_;
  std::vector<bool> has_grads_;  // by parameter
  FlatLayout layout_;
  int shard_rank_;
  ProcessGroup* all_reduce_group_;  // over which shards are replicated; one rank: no all-reduce
  DivisionFactors division_;
  GradientReduction& reduction_;

  Buffer master_buffer_, unsharded_buffer_, unsharded_grad_buffer_, sharded_grad_buffer_;
  TensorView master_, unsharded_, unsharded_grad_, sharded_grad_;
  Event unsharded_ready_;
  bool is_unsharded_ = false;
  bool is_exposed_ = false;  // compute has waited for the parameters
};

}  // namespace mica::fsdp
