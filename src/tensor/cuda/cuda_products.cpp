#include "../arguments.hpp"
#include "bias.hpp"
#include "cuda_kernels.hpp"
#include "products.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// Whether cuBLASLt writes this dtype itself when it multiplies `ab`.
bool is_direct(DType ab, DType c) { return c == DType::f32 || c == ab; }

}  // namespace

ConstTensorView CudaKernels::as_dtype(Stream& s, ConstTensorView x, DType dtype, Buffer& space) {
  if (!x || x.dtype == dtype) return x;
  space = scratch(s, x.numel() * dtype_bytes(dtype));
  const TensorView converted(space.data(), x.shape, dtype);
  copy(s, x, converted);
  return converted;
}

void CudaKernels::run(Stream& s, const char* what, const Product& product, ConstTensorView a, ConstTensorView b,
                      TensorView c, const Access& vector) {
  const Buffer space = scratch(s, product.workspace_bytes());
  s.submit(what, {mica::reads(a), mica::reads(b), vector, mica::writes(c), writes(space)},
           [&product, a, b, c, vector, workspace = space.data(), stream = native(s)] {
             product.run(a.data, b.data, c.data, vector.data, workspace, stream);
           });
}

void CudaKernels::multiply(Stream& s, const char* what, ProductSpec spec, ConstTensorView a, ConstTensorView b,
                           ConstTensorView bias, TensorView c, Write mode) {
  if (record_) record_->push_back({spec.m, spec.n, spec.k, spec.transposed_a, spec.transposed_b, a.dtype});
  // Operands of unequal dtypes go by way of f32, and whatever cuBLASLt has nothing for (an odd address, a dtype of C or
  // a bias that it does not write itself) too: first C, then A and B.
  for (const DType ab : {a.dtype == b.dtype ? a.dtype : DType::f32, DType::f32}) {
    Buffer a_space, b_space, bias_space, bias32_space;
    const ConstTensorView a_in = as_dtype(s, a, ab, a_space);
    const ConstTensorView b_in = as_dtype(s, b, ab, b_space);
    spec.ab = ab;
    const auto find = [&](TensorView out, ConstTensorView vector) {
      spec.c = out.dtype;
      spec.epilogue = vector ? Epilogue::bias : Epilogue::none;
      spec.alignment = Alignments::of(a_in.data, b_in.data, out.data, vector.data);
      return products_->find(spec);
    };
    if (is_direct(ab, c.dtype)) {
      const ConstTensorView vector = as_dtype(s, bias, c.dtype, bias_space);
      spec.accumulate = mode == Write::accumulate;
      const Product* product = find(c, vector);
      if (product) return run(s, what, *product, a_in, b_in, c, mica::reads(vector));
    }
    if (c.dtype == DType::f32 && !bias) continue;
    const Buffer c_space = scratch(s, spec.m * spec.n * 4);
    const TensorView c32(c_space.data(), c.shape, DType::f32);
    spec.accumulate = false;
    const Product* product = find(c32, {});
    if (!product) continue;
    run(s, what, *product, a_in, b_in, c32, {});
    if (bias) return add_bias(s, c32, as_dtype(s, bias, DType::f32, bias32_space), c);
    return scale(s, c32, 1.0, c, mode);
  }
  throw CudaError(
      fmt::format("{}: {} has no algorithm for {}", what, Products::library_description(), spec.to_string()));
}

void CudaKernels::linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const std::int64_t n = w.shape[0];
  const std::int64_t k = w.shape.back();
  const std::int64_t m = x.shape.rows();
  expect("linear", "w", w, n * k, kFloats);
  expect_cols("linear", "x", x, k, kFloats);
  expect_optional("linear", "bias", bias, n, kFloats);
  expect("linear", "y", y, m * n, kFloats);
  if (m == 0 || n == 0) return;
  const ProductSpec spec{.m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = n, .transposed_b = true};
  multiply(s, "linear", spec, x, w, bias, y, Write::overwrite);
}

void CudaKernels::linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) {
  const std::int64_t n = w.shape[0];
  const std::int64_t k = w.shape.back();
  const std::int64_t m = dy.shape.rows();
  expect("linear_backward_input", "w", w, n * k, kFloats);
  expect_cols("linear_backward_input", "dy", dy, n, kFloats);
  expect("linear_backward_input", "dx", dx, m * k, kFloats);
  if (m == 0 || k == 0) return;
  const ProductSpec spec{.m = m, .n = k, .k = n, .lda = n, .ldb = k, .ldc = k};
  multiply(s, "linear_backward_input", spec, dy, w, {}, dx, mode);
}

void CudaKernels::linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw,
                                         TensorView dbias, Write mode) {
  const char* what = "linear_backward_params";
  const std::int64_t n = dw.shape[0];
  const std::int64_t k = dw.shape.back();
  const std::int64_t m = x.shape.rows();
  expect(what, "dw", dw, n * k, kFloats);
  expect_cols(what, "x", x, k, kFloats);
  expect_cols(what, "dy", dy, n, kFloats);
  expect(what, "dy", dy, m * n, kFloats);
  expect_optional(what, "dbias", dbias, n, kFloats);
  if (m == 0) {  // sums of nothing
    if (mode == Write::overwrite) {
      fill(s, dw, 0.0);
      if (dbias) fill(s, dbias, 0.0);
    }
    return;
  }
  if (n == 0 || k == 0) return;
  ProductSpec spec{.m = n, .n = k, .k = m, .lda = n, .ldb = k, .ldc = k, .transposed_a = true};
  if (dbias && dy.dtype == x.dtype && is_direct(x.dtype, dw.dtype) && dbias.dtype == dw.dtype &&
      mode == Write::overwrite) {
    ProductSpec with_sums = spec;
    with_sums.ab = x.dtype;
    with_sums.c = dw.dtype;
    with_sums.epilogue = Epilogue::bias_gradient;
    with_sums.alignment = Alignments::of(dy.data, x.data, dw.data, dbias.data);
    if (const Product* product = products_->find(with_sums)) {
      if (record_) record_->push_back({n, k, m, true, false, dy.dtype});
      return run(s, what, *product, dy, x, dw, mica::writes(dbias));
    }
  }
  if (dbias) bias_gradient(s, pool_, dy, m, dbias, mode);
  multiply(s, what, spec, dy, x, {}, dw, mode);
}

}  // namespace mica::cuda
