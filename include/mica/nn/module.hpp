// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mica/nn/context.hpp"
#include "mica/nn/module_buffer.hpp"
#include "mica/nn/parameter.hpp"
#include "mica/nn/record.hpp"

namespace mica::nn {

class Module;

using Tensors = std::vector<Tensor>;

/// A list of one tensor without a second handle (an initialiser list would copy it).
[[nodiscard]] inline Tensors list_of(Tensor tensor) {
  Tensors list;
  list.push_back(std::move(tensor));
  return list;
}

/// What a unit does around the forward and backward of the module that it is attached to; all that nn knows of fsdp.
class ModuleHooks {
 public:
  virtual ~ModuleHooks() = default;
  /// May replace the inputs (casts).
  virtual void pre_forward(Context& context, Module& module, Tensors& xs, Record* record) = 0;
  virtual void post_forward(Context& context, Module& module, Tensors& ys, Record* record) = 0;
  /// May replace the gradients of the outputs (casts).
  virtual void pre_backward(Context& context, Module& module, Record& record, Tensors& dys) = 0;
  /// May replace the gradients of the inputs (casts).
  virtual void post_backward(Context& context, Module& module, Record& record, Tensors& dxs) = 0;
};

/// A layer or a model: parameters, buffers, children, and an explicit forward and backward (docs/design.md, Modules).
/// Not copyable or movable: parents, units and optimizers hold addresses.
class Module {
 public:
  /// @param type_name  "linear", "gpt2_block": used by wrap policies and error texts.
  explicit Module(std::string type_name) : type_name_(std::move(type_name)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// @param record  filled for backward; null when no gradient is wanted.
  /// [Note: handing over] Lists given as lvalues are left as they are. Lists given as rvalues (std::move) are handed
  /// over: they are freed as early as possible, and a tensor that nobody else holds a handle of (Tensor::is_unique) may
  /// be overwritten by a backward and returned as a gradient.
  [[nodiscard]] Tensors forward(Context& context, Tensors&& xs, Record* record);
  [[nodiscard]] Tensors forward(Context& context, const Tensors& xs, Record* record) { return forward(context, Tensors(xs), record); }
  /// @param dys  gradients of the outputs; an absent tensor is a zero gradient. When all are absent nothing runs.
  /// @returns gradients of the inputs; absent where the input does not need one.
  Tensors backward(Context& context, Record&& record, Tensors&& dys);
  Tensors backward(Context& context, Record&& record, const Tensors& dys) {
    return backward(context, std::move(record), Tensors(dys));  // the caller's handle protects the elements
  }

  [[nodiscard]] const std::string& type_name() const { return type_name_; }

  struct Child {
    std::string name;
    Module* module;
  };
  [[nodiscard]] const std::vector<Child>& children() const { return children_; }
  /// Own parameters, in order; not those of children nor those shared from elsewhere.
  [[nodiscard]] const std::vector<std::unique_ptr<Parameter>>& own_parameters() const { return parameters_; }
  /// Parameters that this module uses but another one owns (a tied head).
  [[nodiscard]] const std::vector<Parameter*>& shared_parameters() const { return shared_; }
  /// Own buffers, in order; not those of children.
  [[nodiscard]] const std::vector<std::unique_ptr<ModuleBuffer>>& own_buffers() const { return buffers_; }

  /// Every parameter of the subtree once, in module order, under its first full name ("transformer.h.0.ln_1.weight").
  void for_each_parameter(const std::function<void(const std::string& full_name, Parameter&)>& visit, const std::string& prefix = "");
  /// Every buffer of the subtree, in module order, under its full name.
  void for_each_buffer(const std::function<void(const std::string& full_name, ModuleBuffer&)>& visit, const std::string& prefix = "");
  /// Every module of the subtree, parents first; the root's name is the prefix.
  void for_each_module(const std::function<void(const std::string& full_name, Module&)>& visit, const std::string& prefix = "");
  [[nodiscard]] std::int64_t num_parameters();
  /// Whether a parameter that the subtree owns or uses wants a gradient.
  [[nodiscard]] bool trains() const;

  /// Keeps only the inputs of a forward and runs it again in backward. Has no effect where no gradient passes through the module
  /// (a frozen prefix): its layers keep nothing anyway.
  void set_checkpointed(bool on) { checkpointed_ = on; }
  [[nodiscard]] bool is_checkpointed() const { return checkpointed_; }

  /// [Note: recomputed outputs] A cheap layer (norm, activation) can recompute the output of a forward from what its Record
  /// holds, so that the layer behind it need not keep that tensor: under Recompute::cheap a chain (chain.hpp) empties the
  /// consumer's saved_input() after forward and fills it again just before the consumer's backward. A layer with hooks never
  /// does so: its parameters are not available outside its own forward and backward. Nor does one in a checkpointed region that
  /// runs again: its backward follows at once, and nothing should be computed a third time. Norms and activations share one
  /// setting because a byte costs the same in both: on a GPU one byte read and one written (a SwiGLU reads two), on a CPU 50 to 100 ns
  /// per KiB (fp32). Losses and gradients have the same bits either way, except on a GPU whose products apply GELUs
  /// (CudaKernelsOptions::fuse_epilogues): a recomputed output comes from the rounded input, the forward's does not.
  [[nodiscard]] bool can_recompute_output(const Record& record) const { return !runs_alone() && recomputes_output(record); }
  [[nodiscard]] Tensor recompute_output(Context& context, Record& record) { return do_recompute_output(context, record); }
  /// Where `record` keeps the module's first input; null if it keeps none that may be dropped and restored.
  [[nodiscard]] Tensor* saved_input(Record& record) {
    return record.checkpoint_inputs.empty() ? do_saved_input(record) : record.checkpoint_inputs.data();
  }

  /// Whether it is a unit or checkpointed: its parameters, and what its Record keeps, may not be available outside its own
  /// forward and backward, so no other module may use them.
  [[nodiscard]] bool runs_alone() const { return hooks_ || checkpointed_; }

  /// False for a container whose children are called directly (a list of blocks): a unit around it would never be
  /// gathered.
  [[nodiscard]] virtual bool has_forward() const { return true; }

  /// Whether its backward writes the gradients of all parameters that it owns or uses by Parameter::write_grad_in_turns().
  [[nodiscard]] virtual bool writes_grads_in_turns() const { return false; }

  /// At most one unit is attached; null detaches.
  void set_hooks(std::shared_ptr<ModuleHooks> hooks) { hooks_ = std::move(hooks); }
  [[nodiscard]] ModuleHooks* hooks() const { return hooks_.get(); }

 protected:
  virtual Tensors do_forward(Context& context, Tensors xs, Record* record) = 0;
  /// At least one of dys is present. dys[i] may be overwritten if dys[i].is_unique(). A module that still needs a tensor after
  /// handing it to a child keeps a handle or passes it as an lvalue.
  virtual Tensors do_backward(Context& context, Record& record, Tensors dys) = 0;
  virtual bool recomputes_output(const Record&) const { return false; }
  virtual Tensor do_recompute_output(Context&, Record&) { return {}; }
  virtual Tensor* do_saved_input(Record&) { return nullptr; }

  /// The parameter's elements. @throws Error if it has no storage now (it is sharded, or never got any).
  [[nodiscard]] ConstTensorView data_of(const Parameter& parameter) const;

  /// The buffer's elements, in their current dtype. @throws Error if it never got storage.
  [[nodiscard]] TensorView data_of(const ModuleBuffer& buffer) const;

  Parameter& add_parameter(std::string name, Shape shape, Initializer init, bool weight_decay);
  ModuleBuffer& add_buffer(std::string name, Shape shape, DType dtype, Initializer init);
  /// Uses a parameter that another module owns (the first name in module order stays its key).
  void share_parameter(Parameter& parameter) { shared_.push_back(&parameter); }
  template <class M, class... Args>
  M& add_child(std::string name, Args&&... args) {  // NOLINT(performance-unnecessary-value-param): it is moved
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *child;
    adopt_child(std::move(name), std::move(child));
    return reference;
  }
  Module& adopt_child(std::string name, std::unique_ptr<Module> child);

 private:
  Tensors recompute_and_backward(Context& context, Record& record, Tensors dys);

  std::string type_name_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<ModuleBuffer>> buffers_;
  std::vector<Parameter*> shared_;
  std::vector<std::unique_ptr<Module>> owned_children_;
  std::vector<Child> children_;
  std::shared_ptr<ModuleHooks> hooks_;
  bool checkpointed_ = false;
};

}  // namespace mica::nn
