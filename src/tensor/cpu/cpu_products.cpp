#include <algorithm>

#include "../arguments.hpp"
#include "cpu_kernels.hpp"
#include "head_loss.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

void CpuKernels::record(const ProductSpec& spec) {
  if (!record_) return;
  record_->push_back({spec.m, spec.n, spec.k, spec.transposed_a, spec.transposed_b, spec.a});
}

void CpuKernels::linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const std::int64_t n = w.shape[0];
  const std::int64_t k = w.shape.back();
  const std::int64_t m = x.shape.rows();
  expect("linear", "w", w, n * k, kFloats);
  expect_cols("linear", "x", x, k, kFloats);
  expect_optional("linear", "bias", bias, n, kFloats);
  expect("linear", "y", y, m * n, kFloats);
  if (m == 0 || n == 0) return;
  ProductSpec spec{.m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = n, .transposed_b = true,
                   .a = x.dtype, .b = w.dtype, .c = y.dtype};
  if (bias) spec.bias = bias.dtype;
  const Product& product = products_.find(spec);
  record(spec);
  const Buffer space = scratch(s, product.scratch_bytes());
  enqueue(s, "linear", {reads(x), reads(w), reads(bias), mica::writes(y), writes(space)},
          [&product, x, w, bias, y, inner = space.data()] {
            product.run(x.data, w.data, bias.data, y.data, inner);
          });
}

void CpuKernels::linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) {
  const std::int64_t n = w.shape[0];
  const std::int64_t k = w.shape.back();
  const std::int64_t m = dy.shape.rows();
  expect("linear_backward_input", "w", w, n * k, kFloats);
  expect_cols("linear_backward_input", "dy", dy, n, kFloats);
  expect("linear_backward_input", "dx", dx, m * k, kFloats);
  if (m == 0 || k == 0) return;
  const ProductSpec spec{.m = m, .n = k, .k = n, .lda = n, .ldb = k, .ldc = k, .a = dy.dtype, .b = w.dtype,
                         .c = dx.dtype, .accumulate = mode == Write::accumulate};
  const Product& product = products_.find(spec);
  record(spec);
  const Buffer space = scratch(s, product.scratch_bytes());
  enqueue(s, "linear_backward_input", {reads(dy), reads(w), mica::writes(dx), writes(space)},
          [&product, dy, w, dx, inner = space.data()] { product.run(dy.data, w.data, nullptr, dx.data, inner); });
}

void CpuKernels::linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw,
                                        TensorView dbias, Write mode) {
  const std::int64_t n = dw.shape[0];
  const std::int64_t k = dw.shape.back();
  const std::int64_t m = x.shape.rows();
  expect("linear_backward_params", "dw", dw, n * k, kFloats);
  expect_cols("linear_backward_params", "x", x, k, kFloats);
  expect_cols("linear_backward_params", "dy", dy, n, kFloats);
  expect("linear_backward_params", "dy", dy, m * n, kFloats);
  expect_optional("linear_backward_params", "dbias", dbias, n, kFloats);
  if (m == 0) {  // sums of nothing
    if (mode == Write::overwrite) {
      fill(s, dw, 0.0);
      if (dbias) fill(s, dbias, 0.0);
    }
    return;
  }
  if (n == 0 || k == 0) return;
  const ProductSpec spec{.m = n, .n = k, .k = m, .lda = n, .ldb = k, .ldc = k, .transposed_a = true,
                         .a = dy.dtype, .b = x.dtype, .c = dw.dtype, .accumulate = mode == Write::accumulate};
  const Product& product = products_.find(spec);
  record(spec);
  const std::int64_t sums_bytes = dbias ? round_up(n * 4, 64) : 0;
  const Buffer space = scratch(s, product.scratch_bytes() + sums_bytes);
  enqueue(s, "linear_backward_params", {reads(dy), reads(x), mica::writes(dw), mica::writes(dbias), writes(space)},
          [&product, dy, x, dw, dbias, mode, m, n, sums_bytes, memory = static_cast<std::byte*>(space.data())] {
            if (dbias) {
              auto* sums = reinterpret_cast<float*>(memory);
              parallel_ranges(n, 64, [&](std::int64_t begin, std::int64_t end) {
                std::fill(sums + begin, sums + end, 0.0F);
                loops().column_sums(dy.dtype, dy.data, n, 0, m, begin, end, sums);
                loops().scale(sums, DType::f32, 1.0F, dbias.data, dbias.dtype, mode, begin, end);
              });
            }
            product.run(dy.data, x.data, nullptr, dw.data, memory + sums_bytes);
          });
}

void CpuKernels::enqueue_head(Stream& s, const char* what, ConstTensorView hidden, ConstTensorView w,
                              ConstTensorView targets, double scale, ConstTensorView dloss, TensorView loss,
                              TensorView dhidden, TensorView dw, Write dw_mode) {
  const std::int64_t m = hidden.shape.rows();
  const std::int64_t vocab = w.shape[0];
  const std::int64_t width = w.shape.back();
  expect(what, "w", w, vocab * width, kFloats);
  expect_cols(what, "hidden", hidden, width, {w.dtype});
  expect(what, "targets", targets, m, {DType::i32});
  expect_optional(what, "loss", loss, 1, {DType::f32});
  expect_optional(what, "dhidden", dhidden, m * width, kFloats);
  expect_optional(what, "dw", dw, vocab * width, kFloats);
  if (m == 0) {
    if (loss) fill(s, loss, 0.0);
    if (dw && dw_mode == Write::overwrite) fill(s, dw, 0.0);
    return;
  }
  const HeadLoss head(products_, {hidden, w, targets, scale, dloss, loss, dhidden, dw}, dw_mode, logits_bytes_);
  if (record_) {
    for (const ProductSpec& spec : head.product_specs()) record(spec);
  }
  const Buffer space = scratch(s, head.scratch_bytes());
  enqueue(s, what,
          {reads(hidden), reads(w), reads(targets), reads(dloss), mica::writes(loss), mica::writes(dhidden),
           mica::writes(dw), writes(space)},
          [head, memory = space.data()] { head.run(memory); });
}

void CpuKernels::head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                           TensorView loss) {
  expect("head_loss", "loss", loss, 1, {DType::f32});
  enqueue_head(s, "head_loss", hidden, w, targets, scale, {}, loss, {}, {}, Write::overwrite);
}

void CpuKernels::head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets,
                                    double scale, ConstTensorView dloss, TensorView loss, TensorView dhidden,
                                    TensorView dw, Write dw_mode) {
  expect("head_loss_backward", "dloss", dloss, 1, {DType::f32});
  enqueue_head(s, "head_loss_backward", hidden, w, targets, scale, dloss, loss, dhidden, dw, dw_mode);
}

}  // namespace mica::cpu
