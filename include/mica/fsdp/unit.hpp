// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/options.hpp"
#include "mica/fsdp/state_dict_settings.hpp"
#include "mica/fsdp/unit_storage.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

class Root;
class Unit;

/// Where a PassObserver sees a unit's tensors in a step, in this order; not in a forward that is recomputed for backward.
enum class PassPoint : std::uint8_t { inputs, outputs, output_gradients, input_gradients };
/// @param tensors  absent ones are zero gradients. A model's loss has its value only after its backward (Context::loss_in_backward).
using PassObserver = std::function<void(const Unit& unit, PassPoint point, const nn::Tensors& tensors)>;

/// An all-gather in flight (docs/parity.md D19).
class UnshardHandle {
 public:
  explicit UnshardHandle(Unit& unit) : unit_(unit) {}
  /// The compute stream waits for the parameters, and the module sees them.
  void wait();

 private:
  Unit& unit_;
};

/// A module subtree whose parameters are gathered and resharded together. Its hooks cast the module's inputs and outputs and
/// tell the Schedule where the pass is. Owned by the module. A unit without parameters of its own does only that.
class Unit final : public nn::ModuleHooks {
 public:
  Unit(nn::Module& module, DeviceMesh& device_mesh, Options options);
  ~Unit() override;

  [[nodiscard]] const std::string& name() const { return name_; }
  /// In Root::units(), once its root is found.
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] nn::Module& module() const { return module_; }
  /// As given, except that on a shard axis of one rank the strategy is no_shard (docs/parity.md A4).
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] Strategy asked_strategy() const { return asked_strategy_; }
  [[nodiscard]] DeviceMesh& device_mesh() const { return device_mesh_; }
  /// Null before the root exists and for a unit without parameters.
  [[nodiscard]] UnitStorage* storage() const { return storage_.get(); }
  /// The root that this unit belongs to, found at first use; this unit becomes the root if no unit above has claimed it.
  [[nodiscard]] Root& root();
  [[nodiscard]] const StateDictSettings& state_dict_settings() const { return state_dict_settings_; }
  /// For set_state_dict_settings(), which keeps the settings of a root's units equal.
  void set_state_dict_settings(const StateDictSettings& settings) { state_dict_settings_ = settings; }
  /// Whether a root has been found.
  [[nodiscard]] bool is_claimed() const { return root_ != nullptr; }
  /// Called by the root, which is found once. @param storage  null: the unit has no parameters.
  void join(Root& root, std::size_t index, std::string name, std::unique_ptr<UnitStorage> storage);

  /// Gathers the parameters ahead of their use, without blocking the host. The next forward waits for this gather only. Between passes.
  /// @collective over the unit's ranks: all unshard, and reshard, the same units in the same order. (Checked in the first step
  /// only, in which the host waits.)
  UnshardHandle unshard();
  /// Reshards the parameters. Between passes.
  void reshard();

  /// Calls `fn` with this unit's whole parameters, which it may change; each rank stores the part that it owns. Between passes.
  void apply(const std::function<void(const std::string& full_name, nn::Parameter& parameter)>& fn);

  /// These units are gathered before this one's forward, whatever forward_prefetch says; empty: as the option says.
  void set_forward_prefetch(std::vector<Unit*> units) { forward_prefetch_ = std::move(units); }
  [[nodiscard]] const std::vector<Unit*>& forward_prefetch_list() const { return forward_prefetch_; }
  /// These units are gathered at this one's backward, instead of the one predicted from the forward's order.
  void set_backward_prefetch(std::vector<Unit*> units) { backward_prefetch_ = std::move(units); }
  [[nodiscard]] const std::vector<Unit*>& backward_prefetch_list() const { return backward_prefetch_; }
  /// The option's value; with an explicit list, `pre` if the option is none.
  [[nodiscard]] BackwardPrefetch backward_prefetch() const;
  /// Off: parameters stay unsharded after backward until the optimizer writes masters or reshard() is called. (An
  /// optimizer in backward writes them as soon as the unit is reduced.)
  void set_reshard_after_backward(bool on) { reshards_after_backward_ = on; }
  [[nodiscard]] bool reshard_after_backward() const { return reshards_after_backward_; }

  void pre_forward(nn::Context& context, nn::Module& module, nn::Tensors& xs, nn::Record* record) override;
  void post_forward(nn::Context& context, nn::Module& module, nn::Tensors& ys, nn::Record* record) override;
  void pre_backward(nn::Context& context, nn::Module& module, nn::Record& record, nn::Tensors& dys) override;
  void post_backward(nn::Context& context, nn::Module& module, nn::Record& record, nn::Tensors& dxs) override;

 private:
  [[nodiscard]] bool is_root() const { return owned_root_ != nullptr; }
  [[nodiscard]] DType compute_dtype() const;
  [[nodiscard]] bool casts_inputs() const;
  void observe(PassPoint point, const nn::Tensors& tensors);

  nn::Module& module_;
  DeviceMesh& device_mesh_;
  Options options_;
  Strategy asked_strategy_;
  std::string name_;
  std::size_t index_ = 0;
  StateDictSettings state_dict_settings_;
  std::unique_ptr<UnitStorage> storage_;
  Root* root_ = nullptr;
  std::unique_ptr<Root> owned_root_;
  std::vector<Unit*> forward_prefetch_, backward_prefetch_;
  bool reshards_after_backward_ = true;
};

}  // namespace mica::fsdp
