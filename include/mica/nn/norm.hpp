#pragma once

#include <string>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// What LayerNorm and RmsNorm are: each row over the last dim divided by its size, times "weight" [width]; where it is
/// centred, less its mean before, plus "bias" [width] after. x [..., width].
/// Makes its output again on request ([Note: recomputed outputs]): a product behind it need not keep it.
class Norm : public Module {
 public:
  /// The forward on x. @param a, b  x is first made of a + b, and may be either ([Note: fused neighbours] in
  /// fused.hpp); null: it is there
  [[nodiscard]] Tensors normalise(Context& context, const Tensor& x, Record* record, const Tensor* a = nullptr,
                                  const Tensor* b = nullptr);

 protected:
  Norm(std::string type_name, std::int64_t width, double eps, bool is_centred);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  bool recomputes_output(const Record& record) const override { return !record.saved.empty(); }
  Tensor do_recompute_output(Context& context, Record& record) override;
  Tensor* do_saved_input(Record& record) override;
  /// y of x, or of a + b, which is written to x. @param mean, rstd  absent: not asked for
  void compute(Context& context, const Tensor* a, const Tensor* b, const Tensor& x, const Tensor& y, const Tensor& mean,
               const Tensor& rstd) const;

  std::int64_t width_;
  double eps_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;  // of a centred one
};

}  // namespace mica::nn
