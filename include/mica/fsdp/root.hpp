// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "mica/fsdp/buffer_storage.hpp"
#include "mica/fsdp/initialize.hpp"
#include "mica/fsdp/schedule.hpp"
#include "mica/fsdp/step_transaction.hpp"
#include "mica/fsdp/unit.hpp"

namespace mica::fsdp {

/// Adjacent pieces of a unit: elements [offset, offset + numel) of this rank's shard, without padding.
struct Stretch {
  std::size_t unit;  ///< in Root::units()
  std::int64_t offset, numel;
};

/// A module buffer under its full name.
struct ModuleBufferName {
  std::string full_name;
  nn::ModuleBuffer* buffer;
};

/// One tree of units: its contents, set-up, Schedule and step. Owned by the root unit.
class Root {
 public:
  /// Claims every unit below `unit`. @throws ConfigError, and claims nothing, when a unit has been a root already, a
  /// shared parameter would be split, a parameter is a scalar, a unit's Options::root differ from the root unit's, units are
  /// on different devices or sets of ranks, an ignored module or parameter is a unit or belongs to another unit, or frozen and
  /// trainable parameters share a unit without original-parameter mode.
  explicit Root(Unit& unit);

  /// Units in module order, the root unit first.
  [[nodiscard]] const std::vector<Unit*>& units() const { return units_; }
  [[nodiscard]] DeviceMesh& device_mesh() const { return unit_.device_mesh(); }
  [[nodiscard]] const RootOptions& options() const { return options_; }
  [[nodiscard]] TrainingState state() const { return schedule_.state(); }
  /// Ignored parameters, in module order ([Note: ignored parameters]).
  [[nodiscard]] const std::vector<UnitParameter>& ignored_parameters() const { return ignored_parameters_; }
  /// Whether the module is ignored, and so its buffers too.
  [[nodiscard]] bool ignores(const nn::Module& module) const { return ignored_modules_.contains(&module); }

  /// Buffers of the modules, in module order.
  [[nodiscard]] const BufferStorage& buffers() const { return buffers_; }

  /// Gives every unit and buffer its storage and values: [Note: initialisation].
  /// @collective over the world if there is a function or a unit has sync_module_states.
  /// @throws ConfigError naming a parameter that the function left without data; Error naming the type of the module at
  ///         which a function failed. With a function all ranks throw the same.
  void initialize(const InitializeOptions& options);
  void initialize(std::uint64_t seed) { initialize(InitializeOptions{.seed = seed}); }
  /// This rank's non-empty pieces, in module order: what optimizers and checkpoints see of the parameters.
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  /// The pieces of one unit.
  [[nodiscard]] std::span<const Piece> pieces_of(const Unit& unit) const;
  /// The piece of the unit's i-th parameter; null if this rank has none of it.
  [[nodiscard]] const Piece* piece_of(const Unit& unit, std::size_t i) const;
  /// The same elements in as few ranges as possible.
  [[nodiscard]] const std::vector<Stretch>& stretches() const { return stretches_; }
  [[nodiscard]] const UnitStorage& storage(const Piece& piece) const { return *units_[piece.unit]->storage(); }
  [[nodiscard]] const UnitParameter& parameter(const Piece& piece) const { return storage(piece).parameters()[piece.parameter]; }
  /// [piece.numel()], the piece's part of UnitStorage::master(), write_master() and sharded_grad().
  [[nodiscard]] ConstTensorView master(const Piece& piece) const;
  [[nodiscard]] TensorView write_master(const Piece& piece) const;
  /// Absent if there is no gradient (docs/parity.md C3).
  [[nodiscard]] TensorView grad(const Piece& piece) const;
  /// Frees the sharded gradients, and unsharded ones that no_sync has left; ends the step.
  void zero_grad();
  /// Reshards what is still unsharded, after a forward without a backward or an unused prefetch. Call it before writing masters
  /// (optimizers do), or the next forward would run on the old parameters.
  void reshard() { schedule_.reshard_all(); }

  /// Off: unsharded gradients accumulate until a synchronising backward (no_sync).
  void set_gradient_sync(bool on);
  [[nodiscard]] bool gradient_sync() const { return schedule_.gradient_sync(); }

  /// Sets a callback for every unit whose gradient was just reduced, in each synchronising backward, in that order (for an
  /// optimizer in backward). It enqueues its work on storage.gradient_stream(), which the end of backward waits for. Null:
  /// none.
  void set_after_reduction(std::function<void(UnitStorage& storage)> callback) { schedule_.set_after_reduction(std::move(callback)); }
  [[nodiscard]] bool has_after_reduction() const { return schedule_.has_after_reduction(); }
  /// Sets a callback for the end of each synchronising backward, when the compute stream waits for all reductions. Null: none.
  void set_after_backward(std::function<void()> callback) { schedule_.set_after_backward(std::move(callback)); }
  /// Sets a callback for the tensors at each PassPoint of a unit: inputs and gradients before the unit casts them, outputs after.
  /// Null: none. For diagnosis (PyTorch: forward and backward hooks): the host calls it, and it may enqueue work that reads the
  /// tensors on the compute stream, and wait for it.
  void set_pass_observer(PassObserver observer) { pass_observer_ = std::move(observer); }
  [[nodiscard]] const PassObserver& pass_observer() const { return pass_observer_; }

  /// Abandons the step: drains the streams, clears their errors, drops outstanding Records and all gradients since zero_grad(),
  /// also those of ignored parameters. Masters, optimizer state and host counters are as before the step, even if the host has
  /// run ahead to the step's end or into the next step: work that did not run does not count. Call it on all ranks at the same
  /// collective.
  void abandon_step() noexcept;
  /// For objects with host state that a step changes.
  [[nodiscard]] const std::shared_ptr<StepTransaction>& transaction() const { return transaction_; }

  /// For the hooks of its units and for BackwardPass, NoSync and SummonFullParams; it checks little.
  [[nodiscard]] Schedule& schedule() { return schedule_; }
  /// For the root unit's forward: checks what is ignored, casts buffers. @throws Error naming an ignored parameter or buffer
  /// without data, or a gradient that does not fit.
  void begin_forward(bool is_training);
  void begin_backward();

  /// Unit tree with numel, shard numel, padding, dtypes and strategy; one line per unit.
  [[nodiscard]] std::string describe() const;

 private:
  void add_pieces(const Unit& unit);
  void warn_about_strategy() const;
  void check_ignored_have_data() const;
  void check_ignored_grads() const;

  Unit& unit_;
  RootOptions options_;
  std::vector<Unit*> units_;
  std::vector<Piece> pieces_;
  std::vector<Stretch> stretches_;
  BufferStorage buffers_;
  std::vector<UnitParameter> ignored_parameters_;
  std::vector<ModuleBufferName> ignored_buffers_;
  std::unordered_set<const nn::Module*> ignored_modules_;
  std::shared_ptr<StepTransaction> transaction_ = std::make_shared<StepTransaction>();
  Schedule schedule_;
  PassObserver pass_observer_;
};

/// Several backwards that end together: units reduce when their outstanding Records reach zero, or at finish(). A root's
/// backward outside any pass opens its own.
class BackwardPass {
 public:
  explicit BackwardPass(Root& root);
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;
  ~BackwardPass();
  /// Reduces what is left, reshards everything; the compute stream waits for the reductions.
  void finish();

 private:
  Root& root_;
  bool open_ = true;
};

/// Turns gradient reduction off for a scope, for all units of the root; scopes nest, and each restores the previous setting
/// (docs/parity.md D17). Begins between passes.
class NoSync {
 public:
  explicit NoSync(Root& root) : root_(root), before_(root.gradient_sync()) { root_.set_gradient_sync(false); }
  /// @throws Error if the module is a unit inside a root.
  explicit NoSync(nn::Module& root_module);
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync() { root_.schedule().set_gradient_sync(before_); }  // also while an exception leaves a pass

 private:
  Root& root_;
  bool before_;
};

}  // namespace mica::fsdp
