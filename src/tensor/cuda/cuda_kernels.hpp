#pragma once

#include <vector>

#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/kernels.hpp"

#include "launch.hpp"

namespace mica::cuda {

class FusedAttention;
class Product;
class Products;
struct ProductSpec;

/// Kernels on streams of one GPU. Each method checks its arguments, takes its scratch from the pool and enqueues; scratch
/// is given back at once in host order, which its home stream makes safe. No method waits for the device.
/// The methods stand in cuda_products.cpp, cuda_attention.cpp, head_loss.cu, elementwise.cu, copy_blocks.cu, norms.cu,
/// activations.cu, rotary.cu, embedding.cu, reductions.cu, exact.cu, random.cu and optimizers.cu.
class CudaKernels final : public Kernels {
 public:
  CudaKernels(Pool& pool, const CudaKernelsOptions& options);
  ~CudaKernels() override;

  [[nodiscard]] std::string description() const override;
  void record_products(std::vector<ProductShape>* list) override { record_ = list; }

  void linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) override;
  void linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) override;
  void linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw, TensorView dbias,
                              Write mode) override;
  void head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                 TensorView loss) override;
  void head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                          ConstTensorView dloss, TensorView loss, TensorView dhidden, TensorView dw,
                          Write dw_mode) override;

  void gelu(Stream& s, ConstTensorView x, TensorView y) override;
  void gelu_backward(Stream& s, ConstTensorView x, ConstTensorView dy, TensorView dx) override;
  void layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps, TensorView y,
                  TensorView mean, TensorView rstd) override;
  void layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma,
                           ConstTensorView mean, ConstTensorView rstd, TensorView dx, Write dx_mode,
                           TensorView dgamma, TensorView dbeta, Write param_mode) override;
  void rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y,
                TensorView rstd) override;
  void rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView rstd,
                         TensorView dx, Write dx_mode, TensorView dgamma, Write param_mode) override;
  void swiglu(Stream& s, ConstTensorView gate, ConstTensorView up, TensorView y) override;
  void swiglu_backward(Stream& s, ConstTensorView gate, ConstTensorView up, ConstTensorView dy, TensorView dgate,
                       TensorView dup) override;
  void rotary(Stream& s, ConstTensorView x, std::span<const double> inv_freq, Turn turn, TensorView y) override;
  void embedding(Stream& s, ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions,
                 TensorView y) override;
  void embedding_backward(Stream& s, ConstTensorView dy, ConstTensorView ids, TensorView dtokens, Write tokens_mode,
                          TensorView dpositions, Write positions_mode) override;
  void attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) override;
  void attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                          ConstTensorView y, ConstTensorView lse, const Qkv& d_in) override;
  void dropout(Stream& s, ConstTensorView x, double p, const RandomKey& key, std::span<const std::int64_t> sequences,
               TensorView y) override;

  void add(Stream& s, ConstTensorView a, ConstTensorView b, TensorView y) override;
  void scale(Stream& s, ConstTensorView src, double factor, TensorView dst, Write mode) override;
  void scale_by(Stream& s, TensorView x, ConstTensorView factor) override;
  void copy(Stream& s, ConstTensorView src, TensorView dst) override;
  void copy_blocks(Stream& s, ConstTensorView src, TensorView dst, std::span<const BlockCopy> blocks) override;
  void fill(Stream& s, TensorView x, double value) override;
  void fill_normal(Stream& s, TensorView x, const RandomKey& key, std::int64_t begin, double std) override;

  void power_sum(Stream& s, ConstTensorView x, double p, TensorView out, Write mode) override;
  void exact_power_sum(Stream& s, ConstTensorView x, double p, TensorView limbs, Write mode) override;
  void exact_sum_value(Stream& s, ConstTensorView limbs, TensorView out) override;
  void fingerprint(Stream& s, ConstTensorView x, TensorView out) override;
  void clip_coefficient(Stream& s, ConstTensorView sum, double p, double max_norm, TensorView norm,
                        TensorView coefficient) override;
  void unscale(Stream& s, TensorView x, ConstTensorView scale, TensorView found_inf) override;
  void update_scale(Stream& s, const ScaleUpdateArgs& args) override;
  void adamw(Stream& s, const AdamWArgs& args) override;
  void sgd(Stream& s, const SgdArgs& args) override;

 private:
  void copy_converting(Stream& s, ConstTensorView src, TensorView dst);
  [[nodiscard]] Buffer scratch(Stream& s, std::int64_t bytes) {
    return pool_.allocate(bytes, MemoryRole::workspace, s);
  }
  /// x, or x converted in `space`; an absent x stays absent.
  [[nodiscard]] ConstTensorView as_dtype(Stream& s, ConstTensorView x, DType dtype, Buffer& space);
  /// C (+)= A B (+ bias) of any floating-point dtypes, recorded. `spec` has the shape, the transposes and the leading
  /// dims, the views say the rest. bias: [n], only when overwriting, or absent. C is dense unless it is f32.
  void multiply(Stream& s, const char* what, ProductSpec spec, ConstTensorView a, ConstTensorView b, ConstTensorView bias,
                TensorView c, Write mode);
  /// Enqueues a product as it is. `vector`: its epilogue's.
  void run(Stream& s, const char* what, const Product& product, ConstTensorView a, ConstTensorView b, TensorView c,
           const Access& vector);

  /// As the arguments of head_loss and head_loss_backward; dloss, loss, dhidden and dw may be absent.
  struct HeadTensors {
    ConstTensorView hidden, w, targets, dloss;
    TensorView loss, dhidden, dw;
  };
  void head(Stream& s, const char* what, const HeadTensors& tensors, double scale, Write dw_mode);

  Pool& pool_;
  CudaKernelsOptions options_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<FusedAttention> fused_attention_;  // null: own kernels only
  std::vector<ProductShape>* record_ = nullptr;
};

[[nodiscard]] inline Access writes(const Buffer& buffer) { return mica::writes(buffer.data(), buffer.bytes()); }

}  // namespace mica::cuda
