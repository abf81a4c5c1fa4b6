// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/chain.hpp"

namespace mica::nn {

/// A body from inputs to outputs, and a head that compares these with targets. Base of models that are trained on
/// examples:
///   {inputs, targets} -> {loss [1] f32}
///   {inputs}          -> {predictions}: what the head returns for the outputs alone
/// @code
///   class Classifier final : public nn::SupervisedModel {
///    public:
///     Classifier(std::int64_t features, std::int64_t width, std::int64_t classes) : SupervisedModel("classifier") {
///       add_body<nn::Linear>("in", features, width);
///       for (int i = 0; i < 4; ++i) {
///         auto& block = add_body<nn::Residual>("blocks." + std::to_string(i), "classifier_block");
///         block.add<nn::LayerNorm>("norm", width);
///         block.add<nn::Linear>("up", width, 4 * width);
///         block.add<nn::Relu>("act");
///         block.add<nn::Linear>("down", 4 * width, width);
///       }
///       add_body<nn::Linear>("out", width, classes);
///       set_head<nn::CrossEntropyLoss>("loss");   // losses.hpp; {outputs} alone: the logits
///     }
///   };
/// @endcode
/// Inputs are f32, or i32 where the body begins with an Embedding. A unit around the model casts floating-point inputs to
/// its param_dtype, and floating-point targets too, as PyTorch's FSDP casts all that a forward is given: a regression in
/// bf16 whose targets must stay f32 calls its loss on the model's outputs instead.
class SupervisedModel : public Module {
 public:
  explicit SupervisedModel(std::string type_name) : Module(std::move(type_name)) {}

  /// Appends a module to the body.
  template <class M, class... Args>
  M& add_body(std::string name, Args&&... args) {
    M& module = add_child<M>(std::move(name), std::forward<Args>(args)...);
    body_.push_back(&module);
    return module;
  }
  /// A Loss, a HeadLoss, or a module of the same inputs and outputs.
  template <class M, class... Args>
  M& set_head(std::string name, Args&&... args) {
    M& module = add_child<M>(std::move(name), std::forward<Args>(args)...);
    head_ = &module;
    return module;
  }

 protected:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

 private:
  std::vector<Module*> body_;
  Module* head_ = nullptr;
};

}  // namespace mica::nn
