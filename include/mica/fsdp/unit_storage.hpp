// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/fsdp/all_gather_hooks.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/fsdp/gradient_turns.hpp"
#include "mica/fsdp/options.hpp"
#include "mica/fsdp/rate_limiter.hpp"
#include "mica/fsdp/shard_layout.hpp"
#include "mica/fsdp/stored_tensor.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// A parameter of a unit under its full name.
struct UnitParameter {
  std::string full_name;
  nn::Parameter* parameter;
  bool can_be_written_in_turns = false;  ///< nn::Module::writes_grads_in_turns() of all modules that use it
};

/// Where a unit's parameters are (docs/parity.md C4, A6).
enum class ShardState : std::uint8_t {
  sharded,               ///< only the master
  sharded_post_forward,  ///< also a larger part, shared among neighbours, for the coming backward
  unsharded,             ///< whole, in param_dtype
};
[[nodiscard]] std::string_view shard_state_name(ShardState state);

class HookedAllGather;

/// The storage of one unit and what moves it. [Note: unit storage]
/// S = shard size, P, U = numels of the layout's shard and unsharded arrays, n = ranks of a neighbour group.
///   master          [P]   f32         sharded_param        permanent once allocated; shares_masters(): side by side with
///                                                          those of the shard group's other ranks
///   casts           [P]   param_dtype unsharded_param      shares_casts(): permanent, side by side with those of the shard group's
///                                                          other ranks
///   low precision   [P]   param_dtype low_precision_shard  from the cast (or copy from the offload tier) until its all-gather
///   gathered        [S*P] param_dtype communication        per-parameter layouts: until it is rearranged
///   unsharded       [U]   param_dtype unsharded_param      between unshard() and reshard(); with S = 1 and fp32 it IS the master,
///                                                          and where masters or casts are shared it IS all of them
///   post forward    [U/n] param_dtype sharded_param        between reshard_among_neighbours() and the next unshard()
///   unsharded grad  [U]   reduce_dtype unsharded_grad      between prepare_grads() and reduce_grads() or zero_grad()
///   gathered grad   [S*P] reduce_dtype communication       per-parameter layouts: while it is reduced
///   sharded grad    [P]   f32         sharded_grad         from the first reduce_grads() until zero_grad()
///   shared grad     [P]   f32         sharded_grad         shares_grads(): from share_grads() on, side by side with those of the shard
///                                                          group's other ranks; becomes the sharded grad of a step
/// In a world of one rank with nothing to convert (keeps_unsharded_grads()), the first unsharded gradient since zero_grad() becomes
/// the sharded one without a copy, and is counted as that from the beginning.
/// Offloaded masters and sharded gradients are in DeviceMesh::offload()'s pool; reduced gradients stay on the device only until
/// they are copied there. With keep_low_precision_grads the sharded gradient is in reduce_dtype.
/// All functions enqueue; the host waits only in the rate limiters, and in the host's own write_master().
///
/// [Note: shared masters] For fp32 units in the flat layout, in a group whose ranks share memory (ProcessGroup::shares_memory()),
/// the unsharded array of S*P elements always exists, and each rank's master is its part of it. unshard() publishes this rank's
/// part and waits for the others' on the unshard stream; reshard() releases the whole on the compute stream; write_master() waits
/// until the others have released it. So no rank reads a master while it is written ([Note: memory side by side]).
/// Rounds are counted at unshard(), which all ranks call in the same order. An abandoned step marks as done all rounds that
/// this rank's host had counted. Other ranks may have counted more or fewer, so each epoch of the mesh starts from a number higher
/// than all earlier ones. Between two epochs no rank reads another rank's part: all have abandoned their step, and
/// DeviceMesh::rebuild() lets no rank continue before all have drained their streams. The group keeps its members.
/// Modules must only read exposed parameters: they are the masters themselves.
/// Not shared but gathered: per-parameter layouts, units with all-gather hooks, masters in the offload tier, fp32 units that reshard among
/// neighbours, and units in another param_dtype, but for those of the next note.
///
/// [Note: shared casts] A unit in a 16-bit param_dtype that keeps its parameters from forward to backward (the root unit, and every
/// unit of a strategy that does so) has them at a step's peak. In such a group its ranks hold them once: unshard() waits on the
/// unshard stream until the others have released the round before, casts this rank's master into its part of an array in
/// param_dtype, and publishes that. Masters are a rank's own then, and write_master() waits for nobody. Units that are gathered
/// again in backward come and go, and the most of them are not there at the peak: an array that stays would cost more than it saves.
/// fp32 forwards of such a unit (full_precision_in_eval) are gathered.
///
/// [Note: shared gradients] The gradient of a large table (an embedding, a head) would be there whole on every rank, and at a step's peak:
/// the head's is made first in backward, and a tied embedding's is the same array. In a group whose ranks share memory they write
/// one array for the unit in turns ([Note: writing in turns]), in f32 whatever reduce_dtype is. After the last turn a rank's part is the
/// sum over the group; it becomes the sharded gradient without a copy, or is added to that of earlier micro-batches, for which a
/// gradient that is still the part is copied away first. The unit's other parameters have an unsharded gradient of each rank's own
/// (f32, one after the other), which is all-reduced into the part, so tables must be half of the unit at least. All ranks must run the
/// backwards of the same tables. Not with a reduction other than the default one, in other layouts
/// than the flat one, with gradients in low precision or in the offload tier, or where they travel between nodes in 16 bits.
class UnitStorage {
 public:
  /// @param name  the unit's, for labels and errors; e.g. "transformer.h.0".
  /// @param keeps_for_backward  whether parameters stay unsharded from forward to backward.
  /// @throws ConfigError for options that do not fit these parameters or the mesh.
  UnitStorage(std::string name, std::vector<UnitParameter> parameters, DeviceMesh& device_mesh, const Options& options,
              const RootOptions& of_root, bool keeps_for_backward);
  ~UnitStorage();
  UnitStorage(const UnitStorage&) = delete;
  UnitStorage& operator=(const UnitStorage&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] DeviceMesh& device_mesh() const { return device_mesh_; }
  [[nodiscard]] const ShardLayout& layout() const { return *layout_; }
  [[nodiscard]] const std::vector<UnitParameter>& parameters() const { return parameters_; }
  [[nodiscard]] int shard_rank() const { return shard_rank_; }
  [[nodiscard]] int shard_size() const { return layout_->shard_size(); }
  [[nodiscard]] bool is_trainable() const;
  /// The pool of the master and the optimizer state.
  [[nodiscard]] Pool& master_pool() const { return pool_of(offload_ == CpuOffload::parameters); }
  [[nodiscard]] Pool& grad_pool() const { return pool_of(offload_ != CpuOffload::none); }

  /// Allocates the master, unless it is allocated already, and fills this rank's pieces with their initial values, or with zeros.
  /// @collective over the shard axis where masters are shared. @throws ConfigError on all of its ranks when there is too little memory to
  /// share.
  void initialize(std::uint64_t seed);
  void initialize_to_zeros();
  [[nodiscard]] bool is_initialized() const { return static_cast<bool>(master_); }
  [[nodiscard]] ConstTensorView master() const { return master_.view(); }  // [P] f32
  /// Whether the masters of the shard group's ranks are side by side in shared memory, so that nothing is gathered.
  /// [Note: shared masters]
  [[nodiscard]] bool shares_masters() const;
  /// The same of casts of them. [Note: shared casts]
  [[nodiscard]] bool shares_casts() const;
  /// Whether the shard group's ranks write a gradient that they share. [Note: shared gradients]
  [[nodiscard]] bool shares_grads() const;
  /// Of this rank's masters or casts, and gradients, in shared memory.
  [[nodiscard]] std::int64_t shared_bytes() const;
  /// Allocates the shared gradient of a unit that shares_grads(), once, before its first training forward. The streams are drained.
  /// @collective over the shard axis @throws ConfigError as initialize()
  void share_grads();
  /// The master, for writing on `s` after the work enqueued there so far: the only way to write it. The unit must be resharded first
  /// (Root::reshard()), or the unsharded copy would be stale, unless that IS the master (one shard rank, fp32, not offloaded).
  /// Where masters are shared, `s` waits until no other rank reads this one any more.
  /// @throws Error if the unit is unsharded and that is not the master alone.
  [[nodiscard]] TensorView write_master(Stream& s) const;
  /// The same for the host, which waits, and for the compute stream.
  [[nodiscard]] TensorView write_master() const;

  /// Registers custom all-gather hooks for this parameter. Before the first unshard, the same on all ranks.
  /// @throws ConfigError if a hook of the pair is missing, the layout is not per-parameter on dim 0, or the unit reshards
  ///         among neighbours.
  void set_all_gather_hooks(const nn::Parameter& parameter, AllGatherHooks hooks);
  /// Enqueues the cast and the all-gather; nothing if already unsharded in that precision.
  /// @param full_precision  fp32 instead of param_dtype.
  /// @throws ConfigError naming both devices, if the master is not where cpu_offload says (docs/parity.md D9).
  void unshard(RateLimiter& limiter, bool full_precision = false);
  [[nodiscard]] ShardState state() const {
    return unsharded_ ? ShardState::unsharded : post_forward_ ? ShardState::sharded_post_forward : ShardState::sharded;
  }
  [[nodiscard]] bool is_unsharded() const { return static_cast<bool>(unsharded_); }
  /// The compute stream waits for the parameters, and the module sees them.
  void expose();
  /// Returns the unsharded storage. The compute stream's work so far was its last reader.
  void reshard(RateLimiter& limiter);
  /// The same after a training forward, but keeps this rank's part among its neighbours (docs/parity.md A6).
  void reshard_among_neighbours(RateLimiter& limiter);

  /// Makes storage for the gradients that the module will write. Existing ones stay (no_sync accumulates in them).
  /// @param full_precision  fp32 instead of reduce_dtype, unless there are written ones.
  void prepare_grads(RateLimiter& limiter, bool full_precision = false);
  [[nodiscard]] bool has_unsharded_grad() const { return unsharded_grad_ || (turns_ && turns_->is_in_round()); }
  /// Whether, on a world of one rank, gradients are already in the right place and dtype, so that reducing would only copy.
  [[nodiscard]] bool keeps_unsharded_grads() const;
  /// Averages the unsharded gradient over the world and adds it to the sharded gradient.
  void reduce_grads(RateLimiter& limiter);
  /// [P] f32 (reduce_dtype with keep_low_precision_grads), absent before the first reduction. Valid on the compute
  /// stream after the backward pass has ended.
  [[nodiscard]] TensorView sharded_grad() const { return sharded_grad_.view(); }
  /// The stream that writes sharded_grad().
  [[nodiscard]] Stream& gradient_stream() const {
    const Streams& streams = device_mesh_.streams();
    return all_reduce_group().num_ranks() > 1 ? *streams.all_reduce : *streams.post_backward;
  }
  /// Whether the i-th parameter has a sharded gradient. In original-parameter mode one whose backward has not run since
  /// zero_grad() has none (on all ranks alike: the first step's order check compares); otherwise its part of the
  /// gradient is zero.
  [[nodiscard]] bool has_grad(std::size_t i) const { return has_grads_[i]; }
  /// Frees the sharded gradient, and an unsharded one that no_sync has left; their last readers are in the work enqueued so far on
  /// the compute stream, or on gradient_stream() (an optimizer in backward).
  void zero_grad();
  /// Drops unsharded parameters and all gradients without any communication (abandon_step). The streams are drained.
  void drop_step();

 private:
  [[nodiscard]] Pool& pool_of(bool offloaded) const { return offloaded ? *device_mesh_.offload().pool : device_mesh_.pool(); }
  [[nodiscard]] bool aliases_master(DType dtype) const {
    return layout_->shard_size() == 1 && dtype == DType::f32 && offload_ != CpuOffload::parameters;
  }
  /// The ranks over which shards are replicated; one rank: no all-reduce. Looked up at each use, since a mesh may be rebuilt.
  [[nodiscard]] ProcessGroup& all_reduce_group() const { return device_mesh_.all_reduce_group(layout_->shard_size()); }
  [[nodiscard]] bool keeps_part_after_forward() const { return num_neighbours_ > 0; }
  void allocate_master();
  /// The last round that this rank has published ([Note: shared masters]).
  [[nodiscard]] std::uint64_t last_round() const;
  void unshard_in_place();
  void cast_own_part(Stream& s);
  [[nodiscard]] bool is_group_sharing() const;
  /// Once allocated, whatever group a rebuilt mesh has.
  [[nodiscard]] bool has_shared_masters() const { return parts_.is_shared() && parts_.whole.dtype == DType::f32; }
  void check_placement() const;
  void drop_arrays();
  void gather_shards(TensorView whole);
  void gather_from_neighbours(TensorView whole);
  [[nodiscard]] bool hands_grads_over() const { return keeps_unsharded_grads() && !sharded_grad_; }
  void allocate_sharded_grad(Stream& home);
  void begin_turns(RateLimiter& limiter);
  void expose_grads();
  /// @param shard_size  1 if `unsharded` holds this rank's shard alone, with the sum over the shard group in it.
  void average_grads(TensorView unsharded, TensorView sharded, Write mode, int shard_size, Stream& result_stream);
  void reduce_turns(RateLimiter& limiter, Stream& reduce_stream, Stream& result_stream);
  [[nodiscard]] bool is_in_turns(std::size_t i) const { return parameters_[i].can_be_written_in_turns && is_large(i); }
  [[nodiscard]] bool is_large(std::size_t i) const;
  /// Where the i-th parameter's gradient begins in the storage of those that are not written in turns.
  [[nodiscard]] std::int64_t own_grad_begin(std::size_t i) const;
  void hide_grads();
  void note_written_grads();
  void zero_unwritten_grads();

  std::string name_;
  std::vector<UnitParameter> parameters_;
  DeviceMesh& device_mesh_;
  DType param_dtype_;
  DType reduce_dtype_;
  bool can_share_masters_, can_share_casts_, can_share_grads_;
  bool keeps_low_precision_grads_;
  bool use_orig_params_;
  std::vector<bool> has_grads_;  // by parameter
  CpuOffload offload_;
  std::unique_ptr<ShardLayout> layout_;
  int shard_rank_;
  int num_neighbours_ = 0;  // ranks among which a part stays after forward; 0: none
  GradientReduction& reduction_;
  std::unique_ptr<HookedAllGather> hooked_;

  StoredTensor master_, unsharded_, post_forward_, unsharded_grad_, sharded_grad_;
  SharedParts parts_;        // all ranks' masters, of which master_ is this rank's and owns parts_.memory; or their casts
  std::uint64_t round_ = 0;  // [Note: shared masters]
  Event cast_last_read_;     // on this rank
  SharedParts grad_parts_;
  std::unique_ptr<GradientTurns> turns_;  // null: gradients are not shared
  bool is_exposed_ = false;               // compute has waited for the parameters
};

}  // namespace mica::fsdp
