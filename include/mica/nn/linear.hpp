#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

struct LinearOptions {
  bool bias = true;
  double weight_std = 0.02;  ///< of the normal initial weight; the bias starts at zero
};

/// y = x weight^T + bias. x [..., in] -> y [..., out]; "weight" [out, in], "bias" [out]. Applies a Gelu behind it and the
/// gradient of one before it, and makes the sum of a residual that it ends ([Note: fused neighbours]).
class Linear final : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {});

  /// record.saved: the input, absent when weight and bias are frozen.
  static constexpr std::size_t kInput = 0;

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override;
  /// With a Gelu.
  std::optional<Tensors> do_forward_with(Context& context, Module& next, Tensors& xs, Record* record,
                                         Record* next_record) override;
  std::optional<Tensors> do_backward_with(Context& context, Module& previous, Record& record, Record& previous_record,
                                          Tensors& dys) override;
  [[nodiscard]] bool can_add_to(const Context& context, const Tensor& base) const override;
  Tensor do_forward_onto(Context& context, const Tensor& base, Tensors xs, Record* record) override;
  /// @param base  added to the output; null: nothing is
  [[nodiscard]] Tensor multiplied(Context& context, const Tensors& xs, const Tensor* base, Record* record);
  [[nodiscard]] bool trains() const;
  void write_parameter_gradients(Context& context, const Tensor& x, const Tensor& dy);

  std::int64_t in_, out_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace mica::nn
