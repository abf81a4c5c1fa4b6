// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "bias.hpp"
#include "cuda_kernels.hpp"
#include "products.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// Whether cuBLASLt writes this dtype itself when it multiplies `ab`.
bool is_direct(DType ab, DType c) { return c == DType::f32 || c == ab; }

/// cuBLASLt's GELU is good to 4e-6, its gradient to 2e-5 (13.1 on an H200): enough for 16 bits, not for fp32.
bool is_gelu_good_enough(DType dtype) { return dtype != DType::f32; }

}  // namespace

ConstTensorView CudaKernels::as_dtype(Stream& s, ConstTensorView x, DType dtype, Buffer& space) {
  if (!x || x.dtype == dtype) return x;
  space = scratch(s, x.numel() * dtype_bytes(dtype));
  const TensorView converted(space.data(), x.shape, dtype);
  copy(s, x, converted);
  return converted;
}

void CudaKernels::run(Stream& s, const char* what, const Product& product, ConstTensorView a, ConstTensorView b, TensorView c,
                      const Access& vector, const Access& aux) {
  const Buffer space = scratch(s, product.workspace_bytes());
  s.submit(what, {mica::reads(a), mica::reads(b), vector, aux, mica::writes(c), writes(space)},
           [&product, a, b, c, vector, aux, workspace = space.data(), stream = native(s)] {
             product.run(a.data, b.data, c.data, vector.data, aux.data, workspace, stream);
           });
}

template <class Why>
void CudaKernels::note_slow_product(std::string_view kind, const char* what, const ProductSpec& spec, const Why& why) {
  if (spec.m * spec.n * spec.k < kFewestMultiplyAdds) return;
  const auto dtypes = static_cast<std::int64_t>(spec.ab) * 256 + static_cast<std::int64_t>(spec.c);
  slow_paths_.note(kind, {spec.m, spec.n, spec.k, spec.transposed_a, spec.transposed_b, dtypes},
                   [&] { return std::pair(fmt::format("{}, {}", what, spec.operands_text()), why()); });
}

void CudaKernels::multiply(Stream& s, const char* what, ProductSpec spec, ConstTensorView a, ConstTensorView b, ConstTensorView bias,
                           TensorView c, Write mode) {
  if (record_) record_->push_back({spec.m, spec.n, spec.k, spec.transposed_a, spec.transposed_b, a.dtype});
  // Operands are converted to f32 if their dtypes differ, or if cuBLASLt has no kernel (an odd address, a dtype of C or of a bias
  // that it does not support): first C, then A and B.
  std::optional<ProductSpec> refused;  // the first product that cuBLASLt refused
  const auto note = [&] {
    const bool is_in_f32 = spec.ab != a.dtype || spec.ab != b.dtype;
    ProductSpec asked = spec;
    asked.ab = a.dtype;
    note_slow_product(is_in_f32 ? "operands converted to fp32" : "a result converted from fp32", what, asked, [&] {
      if (a.dtype != b.dtype) return fmt::format("operands of {} and {}", dtype_name(a.dtype), dtype_name(b.dtype));
      if (refused) return Products::why_not(*refused);
      return fmt::format("{} does not write {} when it multiplies {}", Products::library_description(), dtype_name(c.dtype),
                         dtype_name(a.dtype));
    });
  };
  for (const DType ab : {a.dtype == b.dtype ? a.dtype : DType::f32, DType::f32}) {
    Buffer a_space, b_space, bias_space, bias32_space;
    const ConstTensorView a_in = as_dtype(s, a, ab, a_space);
    const ConstTensorView b_in = as_dtype(s, b, ab, b_space);
    spec.ab = ab;
    const auto find = [&](TensorView out, ConstTensorView vector) {
      spec.c = out.dtype;
      spec.epilogue = vector ? Epilogue::bias : Epilogue::none;
      spec.alignment = Alignments::of(a_in.data, b_in.data, out.data, vector.data);
      const Product* product = products_->find(spec);
      if (!product && !refused) refused = spec;
      return product;
    };
    if (is_direct(ab, c.dtype)) {
      const ConstTensorView vector = as_dtype(s, bias, c.dtype, bias_space);
      spec.accumulate = mode == Write::accumulate;
      const Product* product = find(c, vector);
      if (product) {
        if (ab != a.dtype || ab != b.dtype) note();
        return run(s, what, *product, a_in, b_in, c, mica::reads(vector));
      }
    }
    if (c.dtype == DType::f32 && !bias) continue;
    const Buffer c_space = scratch(s, c.numel() * 4);
    const TensorView c32(c_space.data(), c.shape, DType::f32);
    spec.accumulate = false;
    const Product* product = find(c32, {});
    if (!product) continue;
    note();
    run(s, what, *product, a_in, b_in, c32, {});
    if (bias) return add_bias(s, c32, as_dtype(s, bias, DType::f32, bias32_space), c);
    return scale(s, c32, 1.0, c, mode);
  }
  throw CudaError(fmt::format("{}: {} has no algorithm for {}", what, Products::library_description(), spec.to_string()));
}

void CudaKernels::linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const auto [m, n, k] = check_linear(x, w, bias, y);
  if (m == 0 || n == 0) return;
  const ProductSpec spec{.m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = n, .transposed_b = true};
  multiply(s, "linear", spec, x, w, bias, y, Write::overwrite);
}

void CudaKernels::linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) {
  const auto [m, n, k] = check_linear_backward_input(dy, w, dx);
  if (m == 0 || k == 0) return;
  const ProductSpec spec{.m = m, .n = k, .k = n, .lda = n, .ldb = k, .ldc = k};
  multiply(s, "linear_backward_input", spec, dy, w, {}, dx, mode);
}

// [Note: epilogues of products] cuBLASLt's GELU is the tanh approximation, like Mica's. The product and the GELU run one after the other
// in fp32 and TF32, if cuBLASLt has no such product (for a width that is not a multiple of 8, a dtype, an address), and if bits must
// not depend on fusion (CudaKernelsOptions::fuse_epilogues is false). Biases' gradients have a kernel of their own: cuBLASLt's epilogue
// for them reads the matrix once more, too, and took 1.4 times as long (13.1, H200).
void CudaKernels::linear_gelu(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView pre, TensorView y) {
  const char* what = "linear_gelu";
  const auto [m, n, k] = check_linear_gelu(x, w, bias, pre, y);
  if (m == 0 || n == 0) return;
  ProductSpec spec{.m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = n, .transposed_b = true, .ab = x.dtype, .c = y.dtype};
  const auto find = [&](ConstTensorView aux) {
    spec.alignment = Alignments::of(x.data, w.data, y.data, bias.data, aux.data);
    spec.epilogue = aux ? (bias ? Epilogue::gelu_aux_bias : Epilogue::gelu_aux) : (bias ? Epilogue::gelu_bias : Epilogue::gelu);
    return products_->find(spec);
  };
  if (options_.fuse_epilogues && is_gelu_good_enough(y.dtype)) {
    const bool takes_bias = !bias || bias.dtype == y.dtype;
    TensorView aux = pre;
    Buffer unwanted;
    const Product* product = takes_bias ? find(aux) : nullptr;
    if (!product && !pre && takes_bias) {  // the algorithm that writes pre may not work without it
      unwanted = scratch(s, y.bytes());
      aux = TensorView(unwanted.data(), y.shape, y.dtype);
      product = find(aux);
    }
    if (product) {
      if (record_) record_->push_back({m, n, k, false, true, x.dtype});
      return run(s, what, *product, x, w, y, mica::reads(bias), mica::writes(aux));
    }
    note_slow_product("a GELU not fused with its product", what, spec, [&] {
      return takes_bias ? Products::why_not(spec)
                        : fmt::format("a bias of {} for a result of {}", dtype_name(bias.dtype), dtype_name(y.dtype));
    });
  }
  linear(s, x, w, bias, pre ? pre : y);
  activation(s, Activation::gelu, pre ? pre : y, y);
}

void CudaKernels::linear_gelu_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, ConstTensorView pre, TensorView dpre) {
  const auto [m, n, k] = check_linear_gelu_backward_input(dy, w, pre, dpre);
  if (m == 0 || k == 0) return;
  const ProductSpec spec{.m = m,
                         .n = k,
                         .k = n,
                         .lda = n,
                         .ldb = k,
                         .ldc = k,
                         .ab = dy.dtype,
                         .c = dpre.dtype,
                         .epilogue = Epilogue::gelu_gradient,
                         .alignment = Alignments::of(dy.data, w.data, dpre.data, nullptr, pre.data)};
  if (options_.fuse_epilogues && is_gelu_good_enough(dpre.dtype)) {
    const char* what = "linear_gelu_backward_input";
    if (const Product* product = products_->find(spec)) {
      if (record_) record_->push_back({m, k, n, false, false, dy.dtype});
      return run(s, what, *product, dy, w, dpre, {}, mica::reads(pre));
    }
    note_slow_product("a GELU's gradient not fused with its product", what, spec, [&] { return Products::why_not(spec); });
  }
  linear_backward_input(s, dy, w, dpre, Write::overwrite);
  activation_backward(s, Activation::gelu, pre, dpre, dpre);
}

void CudaKernels::linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw, TensorView dbias, Write mode) {
  const char* what = "linear_backward_params";
  const auto [m, n, k] = check_linear_backward_params(dy, x, dw, dbias);
  if (m == 0) {  // empty sums
    if (mode == Write::overwrite) {
      fill(s, dw, 0.0);
      if (dbias) fill(s, dbias, 0.0);
    }
    return;
  }
  if (n == 0 || k == 0) return;
  if (dbias) bias_gradient(s, pool_, dy, m, dbias, mode);
  const ProductSpec spec{.m = n, .n = k, .k = m, .lda = n, .ldb = k, .ldc = k, .transposed_a = true};
  multiply(s, what, spec, dy, x, {}, dw, mode);
}

}  // namespace mica::cuda
