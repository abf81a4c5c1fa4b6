// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../each_turn.hpp"
#include "../product_arguments.hpp"
#include "cpu_kernels.hpp"
#include "head_loss.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

void CpuKernels::record(const char* task, const ProductSpec& spec) {
  if (!record_) return;
  record_->push_back({spec.m, spec.n, spec.k, spec.transposed_a, spec.transposed_b, spec.a, task});
}

namespace {

ProductSpec linear_spec(const LinearDims& d, ConstTensorView x, ConstTensorView w, ConstTensorView bias, DType y) {
  ProductSpec spec{
      .m = d.m, .n = d.n, .k = d.k, .lda = d.k, .ldb = d.k, .ldc = d.n, .transposed_b = true, .a = x.dtype, .b = w.dtype, .c = y};
  if (bias) spec.bias = bias.dtype;
  return spec;
}

ProductSpec backward_input_spec(const LinearDims& d, ConstTensorView dy, ConstTensorView w, DType dx, Write mode) {
  return {.m = d.m,
          .n = d.k,
          .k = d.n,
          .lda = d.n,
          .ldb = d.k,
          .ldc = d.k,
          .a = dy.dtype,
          .b = w.dtype,
          .c = dx,
          .accumulate = mode == Write::accumulate};
}

}  // namespace

void CpuKernels::linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const LinearDims d = check_linear(x, w, bias, y);
  if (d.m == 0 || d.n == 0) return;
  const ProductSpec spec = linear_spec(d, x, w, bias, y.dtype);
  const std::shared_ptr<const Product> product = products_.find(spec);
  record("linear", spec);
  const Buffer space = scratch(s, product->scratch_bytes());
  enqueue(s, "linear", {reads(x), reads(w), reads(bias), mica::writes(y), writes(space)},
          [product, x, w, bias, y, inner = space.data()] { product->run(x.data, w.data, bias.data, y.data, inner); });
}

void CpuKernels::linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) {
  const LinearDims d = check_linear_backward_input(dy, w, dx);
  if (d.m == 0 || d.k == 0) return;
  const ProductSpec spec = backward_input_spec(d, dy, w, dx.dtype, mode);
  const std::shared_ptr<const Product> product = products_.find(spec);
  record("linear_backward_input", spec);
  const Buffer space = scratch(s, product->scratch_bytes());
  enqueue(s, "linear_backward_input", {reads(dy), reads(w), mica::writes(dx), writes(space)},
          [product, dy, w, dx, inner = space.data()] { product->run(dy.data, w.data, nullptr, dx.data, inner); });
}

// A GELU is cheap compared with a product, so an epilogue would gain nothing: the GELU's loop runs after the product, in
// the same task.
void CpuKernels::linear_gelu(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView pre, TensorView y) {
  const LinearDims d = check_linear_gelu(x, w, bias, pre, y);
  if (d.m == 0 || d.n == 0) return;
  const ProductSpec spec = linear_spec(d, x, w, bias, y.dtype);
  const std::shared_ptr<const Product> product = products_.find(spec);
  record("linear_gelu", spec);
  const Buffer space = scratch(s, product->scratch_bytes());
  enqueue(s, "linear_gelu", {reads(x), reads(w), reads(bias), mica::writes(pre), mica::writes(y), writes(space)},
          [product, x, w, bias, to = pre ? pre : y, y, inner = space.data()] {
            product->run(x.data, w.data, bias.data, to.data, inner);
            parallel_ranges(y.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
              loops().activation(Activation::gelu, y.dtype, to.data, y.data, begin, end);
            });
          });
}

void CpuKernels::linear_gelu_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, ConstTensorView pre, TensorView dpre) {
  const LinearDims d = check_linear_gelu_backward_input(dy, w, pre, dpre);
  if (d.m == 0 || d.k == 0) return;
  const ProductSpec spec = backward_input_spec(d, dy, w, dpre.dtype, Write::overwrite);
  const std::shared_ptr<const Product> product = products_.find(spec);
  record("linear_gelu_backward_input", spec);
  const Buffer space = scratch(s, product->scratch_bytes());
  enqueue(s, "linear_gelu_backward_input", {reads(dy), reads(w), reads(pre), mica::writes(dpre), writes(space)},
          [product, dy, w, pre, dpre, inner = space.data()] {
            product->run(dy.data, w.data, nullptr, dpre.data, inner);
            parallel_ranges(dpre.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
              loops().activation_backward(Activation::gelu, dpre.dtype, pre.data, dpre.data, dpre.data, begin, end);
            });
          });
}

void CpuKernels::linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw, TensorView dbias, Write mode) {
  const auto [m, n, k] = check_linear_backward_params(dy, x, dw, dbias);
  if (m == 0) {  // sums over no rows are zero
    if (mode == Write::overwrite) {
      fill(s, dw, 0.0);
      if (dbias) fill(s, dbias, 0.0);
    }
    return;
  }
  if (n == 0 || k == 0) return;
  const ProductSpec spec{.m = n,
                         .n = k,
                         .k = m,
                         .lda = n,
                         .ldb = k,
                         .ldc = k,
                         .transposed_a = true,
                         .a = dy.dtype,
                         .b = x.dtype,
                         .c = dw.dtype,
                         .accumulate = mode == Write::accumulate};
  const std::shared_ptr<const Product> product = products_.find(spec);
  record("linear_backward_params", spec);
  const std::int64_t sums_bytes = dbias ? round_up(n * 4, 64) : 0;
  const Buffer space = scratch(s, product->scratch_bytes() + sums_bytes);
  enqueue(s, "linear_backward_params", {reads(dy), reads(x), mica::writes(dw), mica::writes(dbias), writes(space)},
          [product, dy, x, dw, dbias, mode, m = m, n = n, sums_bytes, memory = static_cast<std::byte*>(space.data())] {
            if (dbias) {
              auto* sums = reinterpret_cast<float*>(memory);
              parallel_ranges(n, 64, [&](std::int64_t begin, std::int64_t end) {
                std::fill(sums + begin, sums + end, 0.0F);
                loops().column_sums(dy.dtype, dy.data, n, 0, m, begin, end, sums);
                loops().scale(sums, DType::f32, 1.0F, dbias.data, dbias.dtype, mode, begin, end);
              });
            }
            product->run(dy.data, x.data, nullptr, dw.data, memory + sums_bytes);
          });
}

void CpuKernels::enqueue_head(Stream& s, const char* what, const HeadTensors& t, double scale, Write dw_mode) {
  if (check_head(what, t).rows == 0) {
    if (t.loss) fill(s, t.loss, 0.0);
    if (t.dw && dw_mode == Write::overwrite) fill(s, t.dw, 0.0);
    return;
  }
  const auto head = std::make_shared<const HeadLoss>(products_, t, scale, dw_mode, logits_bytes_, /*num_ranges=*/1);
  for (std::int64_t chunk = 0; record_ && chunk < head->num_chunks(); ++chunk) {
    for (const ProductSpec& spec : head->chunk_specs(chunk)) record(what, spec);
    if (t.dw) record(what, head->dw_spec(chunk, 0));
  }
  const Buffer space = scratch(s, head->scratch_bytes());
  enqueue(s, what,
          {reads(t.hidden), reads(t.w), reads(t.targets), reads(t.dloss), mica::writes(t.loss), mica::writes(t.dhidden), mica::writes(t.dw),
           writes(space)},
          [head, dw_mode, memory = space.data()] {
            for (std::int64_t chunk = 0; chunk < head->num_chunks(); ++chunk) {
              head->run_chunk(chunk, memory);
              head->write_dw(chunk, 0, chunk == 0 ? dw_mode : Write::accumulate, memory);
            }
            head->sum_losses(memory);
          });
}

void CpuKernels::enqueue_head_in_turns(Stream& s, const char* what, const HeadTensors& t, double scale, Write dw_mode, RowTurns& turns) {
  const HeadDims dims = check_head(what, t);
  if (dims.rows == 0) {
    if (t.loss) fill(s, t.loss, 0.0);
    for_each_turn(s, turns, dims.vocab, dw_mode, [&](int, const RowRange& rows, Write mode) {
      if (mode == Write::overwrite) fill(s, rows_of(t.dw, rows), 0.0);
    });
    return turns.end(s);
  }
  const auto head = std::make_shared<const HeadLoss>(products_, t, scale, dw_mode, logits_bytes_, turns.num_ranges());
  const Buffer space = scratch(s, head->scratch_bytes());
  for (std::int64_t chunk = 0; chunk < head->num_chunks(); ++chunk) {
    const ConstTensorView hidden = head->chunk_of(t.hidden, chunk);
    for (const ProductSpec& spec : head->chunk_specs(chunk)) record(what, spec);
    enqueue(s, what,
            {reads(hidden), reads(t.w), reads(t.targets), reads(t.dloss), mica::writes(head->chunk_of(t.dhidden, chunk)), writes(space)},
            [head, chunk, memory = space.data()] { head->run_chunk(chunk, memory); });
    for_each_turn(s, turns, dims.vocab, dw_mode, [&](int range, const RowRange& rows, Write mode) {
      if (rows.num_rows() == 0) return;
      record(what, head->dw_spec(chunk, range));
      // Of the scratch memory a range's columns of logits, as far as bytes are counted.
      enqueue(s, what,
              {reads(hidden), mica::writes(rows_of(t.dw, rows)), mica::writes(space.data(), head->scratch_bytes() / turns.num_ranges())},
              [head, chunk, range, mode, memory = space.data()] { head->write_dw(chunk, range, mode, memory); });
    });
  }
  turns.end(s);
  enqueue(s, what, {mica::writes(t.loss), writes(space)}, [head, memory = space.data()] { head->sum_losses(memory); });
}

void CpuKernels::head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale, TensorView loss) {
  enqueue_head(s, "head_loss", {.hidden = hidden, .w = w, .targets = targets, .loss = loss}, scale, Write::overwrite);
}

void CpuKernels::head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                                    ConstTensorView dloss, TensorView loss, TensorView dhidden, TensorView dw, Write dw_mode,
                                    RowTurns* turns) {
  const HeadTensors t{.hidden = hidden, .w = w, .targets = targets, .dloss = dloss, .loss = loss, .dhidden = dhidden, .dw = dw};
  if (turns) return enqueue_head_in_turns(s, "head_loss_backward", t, scale, dw_mode, *turns);
  enqueue_head(s, "head_loss_backward", t, scale, dw_mode);
}

}  // namespace mica::cpu
