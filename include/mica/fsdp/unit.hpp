#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/unit_storage.hpp"
#include "mica/fsdp/options.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

class Root;

/// A module subtree whose parameters move together: the hooks around its forward and backward (DESIGN section 3).
/// Owned by the module. A unit without parameters of its own does nothing but take part in the root's bookkeeping.
class Unit final : public nn::ModuleHooks {
 public:
  Unit(nn::Module& module, DeviceMesh& device_mesh, Options options);
  ~Unit() override;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] nn::Module& module() const { return module_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] DeviceMesh& device_mesh() const { return device_mesh_; }
  /// Null before the root exists and for a unit without parameters.
  [[nodiscard]] UnitStorage* storage() const { return storage_.get(); }
  /// The root this unit belongs to, found at first use; makes this unit the root if nobody above claimed it.
  [[nodiscard]] Root& root();

  void pre_forward(nn::Context& context, nn::Module& module, nn::Tensors& xs, nn::Record* record) override;
  void post_forward(nn::Context& context, nn::Module& module, nn::Tensors& ys, nn::Record* record) override;
  void pre_backward(nn::Context& context, nn::Module& module, nn::Record& record) override;
  void post_backward(nn::Context& context, nn::Module& module, nn::Record& record) override;

 private:
  friend class Root;
  [[nodiscard]] bool is_root() const { return owned_root_ != nullptr; }

  nn::Module& module_;
  DeviceMesh& device_mesh_;
  Options options_;
  std::string name_;
  std::unique_ptr<UnitStorage> storage_;
  Root* root_ = nullptr;
  std::unique_ptr<Root> owned_root_;
  /// Records of this unit whose backward has not run. Shared with their tickets, which may outlive the unit or the step.
  std::shared_ptr<int> outstanding_ = std::make_shared<int>(0);
  Unit* backward_next_ = nullptr;  // whose backward follows the current one
};

}  // namespace mica::fsdp
