#pragma once

#include "mica/nn/chain.hpp"
#include "mica/nn/embedding.hpp"
#include "mica/nn/head_loss.hpp"

namespace mica::nn {

/// A body from token ids to hidden states, and a head with the loss. Base of the models here and of users' own
/// (example in sequential.hpp).
///   {ids i32 [B, T], targets i32 [B, T]} -> {loss [1] f32}
///   {ids}                                -> {logits [B*T, vocab] f32}, no gradient
class LanguageModel : public Module {
 public:
  explicit LanguageModel(std::string type_name) : Module(std::move(type_name)) {}

  /// Appends a module to the body; the first takes ids, the last gives [B, T, width].
  template <class M, class... Args>
  M& add_body(std::string name, Args&&... args) {
    M& module = add_child<M>(std::move(name), std::forward<Args>(args)...);
    body_.push_back(&module);
    return module;
  }
  /// @param args  of HeadLoss: vocab_size and width, or the weight of an embedding to tie it to.
  template <class M = HeadLoss, class... Args>
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
