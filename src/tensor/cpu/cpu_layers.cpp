#include <algorithm>
#include <vector>

#include "mica/tensor/random.hpp"

#include "../arguments.hpp"
#include "cpu_kernels.hpp"
#include "embedding.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

void CpuKernels::gelu(Stream& s, ConstTensorView x, TensorView y) {
  const std::int64_t n = x.numel();
  expect("gelu", "x", x, n, kFloats);
  expect("gelu", "y", y, n, {x.dtype});
  enqueue(s, "gelu", {reads(x), mica::writes(y)}, [x, y, n] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().gelu(x.dtype, x.data, y.data, begin, end);
    });
  });
}

void CpuKernels::gelu_backward(Stream& s, ConstTensorView x, ConstTensorView dy, TensorView dx) {
  const std::int64_t n = x.numel();
  expect("gelu_backward", "x", x, n, kFloats);
  expect("gelu_backward", "dy", dy, n, {x.dtype});
  expect("gelu_backward", "dx", dx, n, {x.dtype});
  enqueue(s, "gelu_backward", {reads(x), reads(dy), mica::writes(dx)}, [x, dy, dx, n] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().gelu_backward(x.dtype, x.data, dy.data, dx.data, begin, end);
    });
  });
}

void CpuKernels::swiglu(Stream& s, ConstTensorView gate, ConstTensorView up, TensorView y) {
  const std::int64_t n = gate.numel();
  expect("swiglu", "gate", gate, n, kFloats);
  expect("swiglu", "up", up, n, {gate.dtype});
  expect("swiglu", "y", y, n, {gate.dtype});
  enqueue(s, "swiglu", {reads(gate), reads(up), mica::writes(y)}, [=] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().swiglu(gate.dtype, gate.data, up.data, y.data, begin, end);
    });
  });
}

void CpuKernels::swiglu_backward(Stream& s, ConstTensorView gate, ConstTensorView up, ConstTensorView dy,
                                 TensorView dgate, TensorView dup) {
  const std::int64_t n = gate.numel();
  expect("swiglu_backward", "gate", gate, n, kFloats);
  expect("swiglu_backward", "up", up, n, {gate.dtype});
  expect("swiglu_backward", "dy", dy, n, {gate.dtype});
  expect_optional("swiglu_backward", "dgate", dgate, n, {gate.dtype});
  expect_optional("swiglu_backward", "dup", dup, n, {gate.dtype});
  require(!dgate || dgate.data != dup.data, "swiglu_backward: dgate and dup are one tensor, expected two");
  enqueue(s, "swiglu_backward", {reads(gate), reads(up), reads(dy), mica::writes(dgate), mica::writes(dup)}, [=] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().swiglu_backward(gate.dtype, gate.data, up.data, dy.data, dgate.data, dup.data, begin, end);
    });
  });
}

void CpuKernels::layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps,
                            TensorView y, TensorView mean, TensorView rstd) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect("layer_norm", "x", x, rows * cols, kFloats);
  expect("layer_norm", "gamma", gamma, cols, {x.dtype});
  expect("layer_norm", "beta", beta, cols, {x.dtype});
  expect("layer_norm", "y", y, rows * cols, {x.dtype});
  expect_optional("layer_norm", "mean", mean, rows, {DType::f32});
  expect_optional("layer_norm", "rstd", rstd, rows, {DType::f32});
  require(static_cast<bool>(mean) == static_cast<bool>(rstd), "layer_norm: mean and rstd are wanted both or neither");
  enqueue(s, "layer_norm",
          {reads(x), reads(gamma), reads(beta), mica::writes(y), mica::writes(mean), mica::writes(rstd)},
          [x, gamma, beta, eps, y, mean, rstd, rows, cols] {
            parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
              loops().layer_norm(x.dtype, x.data, gamma.data, beta.data, eps, cols, y.data,
                                 static_cast<float*>(mean.data), static_cast<float*>(rstd.data), begin, end);
            });
          });
}

void CpuKernels::layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma,
                                     ConstTensorView mean, ConstTensorView rstd, TensorView dx, Write dx_mode,
                                     TensorView dgamma, TensorView dbeta, Write param_mode) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect("layer_norm_backward", "x", x, rows * cols, kFloats);
  expect("layer_norm_backward", "dy", dy, rows * cols, {x.dtype});
  expect("layer_norm_backward", "gamma", gamma, cols, {x.dtype});
  expect("layer_norm_backward", "mean", mean, rows, {DType::f32});
  expect("layer_norm_backward", "rstd", rstd, rows, {DType::f32});
  expect_optional("layer_norm_backward", "dx", dx, rows * cols, {x.dtype});
  expect_optional("layer_norm_backward", "dgamma", dgamma, cols, kFloats);
  expect_optional("layer_norm_backward", "dbeta", dbeta, cols, kFloats);
  // Each thread sums its rows' share of dgamma and dbeta; the shares are then added in the threads' order.
  const bool has_params = dgamma || dbeta;
  const std::int64_t grain = row_grain(cols);
  const std::int64_t shares = has_params ? threads_for(rows, grain) : 0;
  const Buffer space = scratch(s, shares * 2 * cols * 4);
  enqueue(s, "layer_norm_backward",
          {reads(dy), reads(x), reads(gamma), reads(mean), reads(rstd), mica::writes(dx), mica::writes(dgamma),
           mica::writes(dbeta), writes(space)},
          [=, sums = static_cast<float*>(space.data())] {
            std::fill(sums, sums + shares * 2 * cols, 0.0F);
            parallel_ranges_by_thread(rows, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
              float* share = has_params ? sums + thread * 2 * cols : nullptr;
              loops().layer_norm_backward(x.dtype, dy.data, x.data, gamma.data, static_cast<const float*>(mean.data),
                                          static_cast<const float*>(rstd.data), cols, dx.data, dx_mode, share,
                                          share ? share + cols : nullptr, begin, end);
            });
            for (std::int64_t i = 1; i < shares; ++i) {
              loops().add(DType::f32, sums, sums + i * 2 * cols, sums, 0, 2 * cols);
            }
            if (dgamma) loops().scale(sums, DType::f32, 1.0F, dgamma.data, dgamma.dtype, param_mode, 0, cols);
            if (dbeta) loops().scale(sums + cols, DType::f32, 1.0F, dbeta.data, dbeta.dtype, param_mode, 0, cols);
          });
}

void CpuKernels::rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y,
                          TensorView rstd) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect("rms_norm", "x", x, rows * cols, kFloats);
  expect("rms_norm", "gamma", gamma, cols, {x.dtype});
  expect("rms_norm", "y", y, rows * cols, {x.dtype});
  expect_optional("rms_norm", "rstd", rstd, rows, {DType::f32});
  enqueue(s, "rms_norm", {reads(x), reads(gamma), mica::writes(y), mica::writes(rstd)}, [=] {
    parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
      loops().rms_norm(x.dtype, x.data, gamma.data, eps, cols, y.data, static_cast<float*>(rstd.data), begin, end);
    });
  });
}

void CpuKernels::rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma,
                                   ConstTensorView rstd, TensorView dx, Write dx_mode, TensorView dgamma,
                                   Write param_mode) {
  const std::int64_t cols = x.shape.back();
  const std::int64_t rows = x.shape.rows();
  expect("rms_norm_backward", "x", x, rows * cols, kFloats);
  expect("rms_norm_backward", "dy", dy, rows * cols, {x.dtype});
  expect("rms_norm_backward", "gamma", gamma, cols, {x.dtype});
  expect("rms_norm_backward", "rstd", rstd, rows, {DType::f32});
  expect_optional("rms_norm_backward", "dx", dx, rows * cols, {x.dtype});
  expect_optional("rms_norm_backward", "dgamma", dgamma, cols, kFloats);
  // As in layer_norm_backward: a share of dgamma for each thread, added in the threads' order.
  const std::int64_t grain = row_grain(cols);
  const std::int64_t shares = dgamma ? threads_for(rows, grain) : 0;
  const Buffer space = scratch(s, shares * cols * 4);
  enqueue(s, "rms_norm_backward",
          {reads(dy), reads(x), reads(gamma), reads(rstd), mica::writes(dx), mica::writes(dgamma), writes(space)},
          [=, sums = static_cast<float*>(space.data())] {
            std::fill(sums, sums + shares * cols, 0.0F);
            parallel_ranges_by_thread(rows, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
              loops().rms_norm_backward(x.dtype, dy.data, x.data, gamma.data, static_cast<const float*>(rstd.data),
                                        cols, dx.data, dx_mode, dgamma ? sums + thread * cols : nullptr, begin, end);
            });
            for (std::int64_t i = 1; i < shares; ++i) loops().add(DType::f32, sums, sums + i * cols, sums, 0, cols);
            if (dgamma) loops().scale(sums, DType::f32, 1.0F, dgamma.data, dgamma.dtype, param_mode, 0, cols);
          });
}

void CpuKernels::embedding(Stream& s, ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions,
                           TensorView y) {
  const std::int64_t width = tokens.shape.back();
  expect("embedding", "ids", ids, ids.numel(), {DType::i32});
  expect("embedding", "tokens", tokens, tokens.shape[0] * width, kFloats);
  expect_cols("embedding", "y", y, width, {tokens.dtype});
  expect("embedding", "y", y, ids.numel() * width, {tokens.dtype});
  if (positions) {
    expect_cols("embedding", "positions", positions, width, {tokens.dtype});
    if (positions.shape[0] < ids.shape.back()) {
      refuse("embedding", "positions", positions, fmt::format("at least {} rows", ids.shape.back()));
    }
  }
  enqueue(s, "embedding", {reads(ids), reads(tokens), reads(positions), mica::writes(y)},
          [=] { embedding_forward(ids, tokens, positions, y); });
}

void CpuKernels::embedding_backward(Stream& s, ConstTensorView dy, ConstTensorView ids, TensorView dtokens,
                                    Write tokens_mode, TensorView dpositions, Write positions_mode) {
  const std::int64_t width = dy.shape.back();
  const std::int64_t seq_len = ids.shape.back();
  expect("embedding_backward", "ids", ids, ids.numel(), {DType::i32});
  expect("embedding_backward", "dy", dy, ids.numel() * width, kFloats);
  if (dtokens) expect_cols("embedding_backward", "dtokens", dtokens, width, kFloats);
  if (dpositions) {
    expect_cols("embedding_backward", "dpositions", dpositions, width, kFloats);
    if (dpositions.shape[0] < seq_len) {
      refuse("embedding_backward", "dpositions", dpositions, fmt::format("at least {} rows", seq_len));
    }
  }
  const Buffer space = scratch(s, embedding_backward_scratch_bytes(ids.numel(), width, omp_get_max_threads()));
  enqueue(s, "embedding_backward",
          {reads(dy), reads(ids), mica::writes(dtokens), mica::writes(dpositions), writes(space)},
          [=, memory = space.data()] {
            if (dtokens) embedding_backward_tokens(dy, ids, dtokens, tokens_mode, memory);
            if (dpositions) embedding_backward_positions(dy, seq_len, dpositions, positions_mode, memory);
          });
}

void CpuKernels::dropout(Stream& s, ConstTensorView x, double p, const RandomKey& key,
                         std::span<const std::int64_t> sequences, TensorView y) {
  const auto batch = static_cast<std::int64_t>(sequences.size());
  require(p >= 0 && p < 1, "dropout: probability {} is not in [0, 1)", p);
  expect("dropout", "x", x, x.numel(), kFloats);
  expect("dropout", "y", y, x.numel(), {x.dtype});
  if (x.shape.num_dims() == 0 || x.shape[0] != batch) {
    refuse("dropout", "x", x, fmt::format("{} rows, one for each sequence", batch));
  }
  if (x.numel() == 0) return;
  const std::uint32_t threshold = dropout_threshold(p);
  const auto factor = static_cast<float>(1.0 / (1.0 - p));
  enqueue(s, "dropout", {reads(x), mica::writes(y)},
          [=, ids = std::vector<std::int64_t>(sequences.begin(), sequences.end())] {
            const std::int64_t row_numel = x.numel() / batch;
            for (std::int64_t b = 0; b < batch; ++b) {
              RandomKey row_key = key;
              row_key.sequence = static_cast<std::uint64_t>(ids[static_cast<std::size_t>(b)]);
              const void* x_row = x.slice(b * row_numel, row_numel).data;
              void* y_row = y.slice(b * row_numel, row_numel).data;
              parallel_ranges(row_numel, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
                loops().dropout(x.dtype, x_row, y_row, row_key, threshold, factor, begin, end);
              });
            }
          });
}

}  // namespace mica::cpu
