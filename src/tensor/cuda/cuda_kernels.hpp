// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/kernels.hpp"

#include "../product_arguments.hpp"
#include "launch.hpp"
#include "slow_paths.hpp"

namespace mica::cuda {

class FusedAttention;
class Product;
class Products;
struct ProductSpec;

/// Kernels on streams of one GPU. Each method checks its arguments, allocates scratch from the pool and enqueues. Scratch
/// is freed right after the enqueue, which is safe because its home stream runs in host order. No method waits for the device.
/// The methods are in cuda_products.cpp, cuda_attention.cpp, head_loss.cu, elementwise.cu, copy_blocks.cu, norms.cu,
/// norms_backward.cu, activations.cu, losses.cu, rotary.cu, embedding.cu, reductions.cu, exact.cu, random.cu and
/// optimizers.cu.
class CudaKernels final : public Kernels {
 public:
  CudaKernels(Pool& pool, const CudaKernelsOptions& options);
  ~CudaKernels() override;

  [[nodiscard]] std::string description() const override;
  void record_products(std::vector<ProductShape>* list) override { record_ = list; }
  [[nodiscard]] std::span<const SlowPath> slow_paths() const { return slow_paths_.list(); }

#include "../kernel_overrides.inc"

 private:
  void copy_converting(Stream& s, ConstTensorView src, TensorView dst);
  [[nodiscard]] Buffer scratch(Stream& s, std::int64_t bytes) { return pool_.allocate(bytes, MemoryRole::workspace, s); }
  /// x, or a converted copy in `space`; an absent x stays absent.
  [[nodiscard]] ConstTensorView as_dtype(Stream& s, ConstTensorView x, DType dtype, Buffer& space);
  /// C (+)= A B (+ bias) of any floating-point dtypes, recorded. `spec` has the shape, the transposes and the leading dims;
  /// addresses and dtypes are the views'. bias: [n], or absent; only if C is overwritten and dense. C's view includes the
  /// elements between its rows.
  void multiply(Stream& s, const char* what, ProductSpec spec, ConstTensorView a, ConstTensorView b, ConstTensorView bias, TensorView c,
                Write mode);
  /// Enqueues a product. `vector` and `aux`: for its epilogue.
  void run(Stream& s, const char* what, const Product& product, ConstTensorView a, ConstTensorView b, TensorView c, const Access& vector,
           const Access& aux = {});
  /// Notes a product for which cuBLASLt has no kernel. `why` returns the reason.
  template <class Why>
  void note_slow_product(std::string_view kind, const char* what, const ProductSpec& spec, const Why& why);
  void note_own_attention(const AttentionShape& shape, DType dtype, bool is_backward, const std::string& why);
  void head(Stream& s, const char* what, const arguments::HeadTensors& tensors, double scale, Write dw_mode);

  Pool& pool_;
  CudaKernelsOptions options_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<FusedAttention> fused_attention_;  // null: own kernels only
  std::vector<ProductShape>* record_ = nullptr;
  SlowPaths slow_paths_;
};

[[nodiscard]] inline Access writes(const Buffer& buffer) { return mica::writes(buffer.data(), buffer.bytes()); }

}  // namespace mica::cuda
