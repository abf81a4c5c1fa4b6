// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Base of LayerNorm and RmsNorm: divides each row over the last dim by its root mean square and multiplies it by "weight"
/// [width]; a centred norm subtracts the row's mean first and adds "bias" [width] after. x [..., width].
/// Recomputes its output on request ([Note: recomputed outputs]), so that a product behind it need not keep it.
class Norm : public Module {
 public:
  /// The forward on x. @param a, b  if given, x = a + b is computed first; x may be either ([Note: fused neighbours] in
  /// fused.hpp)
  [[nodiscard]] Tensors normalise(Context& context, const Tensor& x, Record* record, const Tensor* a = nullptr, const Tensor* b = nullptr);

 protected:
  Norm(std::string type_name, std::int64_t width, double eps, bool is_centred);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  bool recomputes_output(const Record& record) const override { return !record.saved.empty(); }
  Tensor do_recompute_output(Context& context, Record& record) override;
  Tensor* do_saved_input(Record& record) override;
  /// y from x, or from a + b, which is written to x. @param mean, rstd  absent if not wanted
  void compute(Context& context, const Tensor* a, const Tensor* b, const Tensor& x, const Tensor& y, const Tensor& mean,
               const Tensor& rstd) const;

  std::int64_t width_;
  double eps_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;  // null unless centred
};

}  // namespace mica::nn
