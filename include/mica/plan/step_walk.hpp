// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/device/memory_role.hpp"
#include "mica/plan/pass_profile.hpp"
#include "mica/plan/unit_spec.hpp"

namespace mica::plan {

/// How steps are run: the properties of root, streams and trainer that affect memory and communication.
struct StepSpec {
  MeshGeometry mesh;
  StreamMode mode = StreamMode::threaded;
  int micro_batches = 1;
  bool no_sync = false;                      ///< gradients are reduced after the last micro-batch only
  bool clips_grads = true;                   ///< the global norm is computed: one all-reduce
  bool scales_loss = false;                  ///< one all-reduce of the overflow flag over the world
  bool steps_in_backward = false;            ///< each unit is stepped once its gradient is reduced, which is then freed; no norm
  std::int64_t state_bytes_per_element = 8;  ///< optimizer state of one element of a master: AdamW in fp32 8, SGD with momentum 4
  std::int64_t step_workspace_bytes = 0;     ///< most bytes that clipping and the optimizer use
  std::int64_t snapshot_bytes = 0;           ///< held permanently for checkpoints written in the background
  std::int64_t ignored_bytes = 0;            ///< held permanently for ignored parameters (role unsharded_param)
  std::int64_t ignored_trainable_numel = 0;  ///< of ignored parameters for which the optimizer keeps state
  /// Staging (role communication) of one collective: numel of the unsharded side, its dtype, ranks. Empty: none.
  std::function<std::int64_t(Collective, std::int64_t, DType, int)> staging_bytes{};
};
/// Fills in mesh, stream mode and trainable ignored parameters of a root; the caller sets the rest.
[[nodiscard]] StepSpec step_spec_of(const fsdp::Root& root);

/// The ranks of a collective.
enum class Axis : std::uint8_t { shard, neighbours, replicate, world };

struct CollectiveUse {
  Collective kind;
  Axis axis;
  std::size_t unit;        ///< 0 for the norm
  std::int64_t bytes = 0;  ///< of the unsharded side
  int num_ranks = 1;
};

/// Receives what a walk does, in host order.
class WalkVisitor {
 public:
  virtual ~WalkVisitor() = default;
  virtual void allocate(MemoryRole role, std::int64_t bytes) = 0;
  virtual void free(MemoryRole role, std::int64_t bytes) = 0;
  virtual void stretch(const Stretch& stretch) = 0;
  virtual void collective(const CollectiveUse& use) = 0;
};

/// Walks through training steps unit by unit and reports every allocation, free and collective to a visitor. [Note: step walk] It
/// implements docs/design.md, The schedule, a second time, without storage or streams. Tests compare the two, so a change of the runtime
/// that uses more memory or sends more bytes than the walk fails.
class StepWalk {
 public:
  /// All outlive the walk.
  StepWalk(const std::vector<UnitSpec>& units, const StepSpec& spec, const PassProfile& profile, WalkVisitor& visitor);

  /// Allocates the masters and ignored parameters.
  void initialize();
  void micro_batch(bool reduces);
  /// Clipping and the optimizer.
  void optimizer_step();
  void zero_grad();

  /// Called before the first pre_backward of each micro-batch.
  std::function<void()> on_backward{};

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
  struct UnitState {
    bool is_unsharded = false;
    std::int64_t unsharded_bytes = 0;     // allocated; 0 if it uses the master
    std::int64_t post_forward_bytes = 0;  // its shard among the neighbours
    std::int64_t unsharded_grad_bytes = 0;
    bool has_sharded_grad = false;
    bool has_optimizer_state = false;
    int outstanding = 0;                  // forwards whose backward has not run
    std::size_t backward_next = kNobody;  // the unit whose backward is next
  };
  /// A rate limiter: buffers released but held back.
  using Limiter = std::deque<std::int64_t>;

  void pre_forward(std::size_t unit, bool leaves_record);
  void post_forward(const HookPoint& point);
  void pre_backward(std::size_t unit);
  void post_backward(std::size_t unit, bool reduces);
  void end_backward(bool reduces);
  void gather(std::size_t unit);
  void gather_hooked(std::size_t unit);
  void prefetch_backward(std::size_t unit);
  void reshard(std::size_t unit, bool reduces);
  void give_back(std::size_t unit);
  void prepare_grads(std::size_t unit);
  void reduce_grads(std::size_t unit);
  void exchange_grads(std::size_t unit, Axis axis, int replicas);
  void step_unit_in_backward(std::size_t unit);
  void allocate_optimizer_state(std::size_t unit);
  void allocate_ignored_state();
  void collect(Collective kind, Axis axis, std::size_t unit, std::int64_t numel, DType dtype, int num_ranks);
  void release(Limiter& limiter, MemoryRole role, std::int64_t bytes);
  void make_room(Limiter& limiter, MemoryRole role, std::size_t num_kept);
  [[nodiscard]] bool has_parameters(std::size_t unit) const { return units_[unit].shard_numel > 0; }

  const std::vector<UnitSpec>& units_;
  const StepSpec& spec_;
  const PassProfile& profile_;
  WalkVisitor& visitor_;
  std::size_t num_held_;
  std::vector<UnitState> states_;
  Limiter held_params_, held_grads_;
  std::vector<std::size_t> first_order_;  // units in the order in which the first forward entered them
  std::vector<std::size_t> order_;        // units in the order in which this micro-batch's forward left them
  std::size_t forward_at_ = 0;            // position in first_order_
  std::size_t backward_at_ = 0;           // position in order_, counted down
  bool knows_order_ = false;
  bool has_ignored_state_ = false;
};

}  // namespace mica::plan
