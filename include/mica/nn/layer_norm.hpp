#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

/// y = (x - mean) / sqrt(variance + eps) * weight + bias over the last dim. x [..., width]; "weight", "bias" [width].
/// Makes its output again on request ([Note: recomputed outputs]): a product behind it need not keep it.
class LayerNorm final : public Module {
 public:
  explicit LayerNorm(std::int64_t width, double eps = 1e-5);

  /// record.saved
  static constexpr std::size_t kInput = 0;  // [..., width]
  static constexpr std::size_t kMean = 1;   // [M] f32
  static constexpr std::size_t kRstd = 2;   // [M] f32

  /// The forward on x. @param a, b  x is first made of a + b, and may be either ([Note: fused neighbours] in
  /// fused.hpp); null: it is there
  [[nodiscard]] Tensors normalise(Context& context, const Tensor& x, Record* record, const Tensor* a = nullptr,
                                  const Tensor* b = nullptr);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  bool recomputes_output(const Record& record) const override { return !record.saved.empty(); }
  Tensor do_recompute_output(Context& context, Record& record) override;
  Tensor* do_saved_input(Record& record) override;

  std::int64_t width_;
  double eps_;
  Parameter& weight_;
  Parameter& bias_;
};

}  // namespace mica::nn
