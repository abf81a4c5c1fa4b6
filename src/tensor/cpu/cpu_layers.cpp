// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "mica/tensor/random.hpp"

#include "../each_turn.hpp"
#include "../layer_arguments.hpp"
#include "cpu_kernels.hpp"
#include "embedding.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

void CpuKernels::activation(Stream& s, Activation f, ConstTensorView x, TensorView y) {
  const std::int64_t n = check_activation(f, x, y);
  enqueue(s, activation_name(f).forward, {reads(x), mica::writes(y)}, [f, x, y, n] {
    parallel_ranges(n, kElementGrain,
                    [&](std::int64_t begin, std::int64_t end) { loops().activation(f, x.dtype, x.data, y.data, begin, end); });
  });
}

void CpuKernels::activation_backward(Stream& s, Activation f, ConstTensorView x, ConstTensorView dy, TensorView dx) {
  const std::int64_t n = check_activation_backward(f, x, dy, dx);
  enqueue(s, activation_name(f).backward, {reads(x), reads(dy), mica::writes(dx)}, [f, x, dy, dx, n] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().activation_backward(f, x.dtype, x.data, dy.data, dx.data, begin, end);
    });
  });
}

void CpuKernels::swiglu(Stream& s, ConstTensorView gate, ConstTensorView up, TensorView y) {
  const std::int64_t n = check_swiglu(gate, up, y);
  enqueue(s, "swiglu", {reads(gate), reads(up), mica::writes(y)}, [=] {
    parallel_ranges(n, kElementGrain,
                    [&](std::int64_t begin, std::int64_t end) { loops().swiglu(gate.dtype, gate.data, up.data, y.data, begin, end); });
  });
}

void CpuKernels::swiglu_backward(Stream& s, ConstTensorView gate, ConstTensorView up, ConstTensorView dy, TensorView dgate,
                                 TensorView dup) {
  const std::int64_t n = check_swiglu_backward(gate, up, dy, dgate, dup);
  enqueue(s, "swiglu_backward", {reads(gate), reads(up), reads(dy), mica::writes(dgate), mica::writes(dup)}, [=] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().swiglu_backward(gate.dtype, gate.data, up.data, dy.data, dgate.data, dup.data, begin, end);
    });
  });
}

void CpuKernels::layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps, TensorView y,
                            TensorView mean, TensorView rstd) {
  const auto [rows, cols] = check_layer_norm("layer_norm", {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  enqueue(s, "layer_norm", {reads(x), reads(gamma), reads(beta), mica::writes(y), mica::writes(mean), mica::writes(rstd)},
          [x, gamma, beta, eps, y, mean, rstd, rows = rows, cols = cols] {
            parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
              loops().layer_norm(x.dtype, x.data, gamma.data, beta.data, eps, cols, y.data, static_cast<float*>(mean.data),
                                 static_cast<float*>(rstd.data), begin, end);
            });
          });
}

namespace {

/// sum = a + b, a few rows at a time, each followed by norm(begin, end) of these rows while they are in the cache.
template <class Norm>
void add_and_norm(ConstTensorView a, ConstTensorView b, TensorView sum, std::int64_t rows, std::int64_t cols, const Norm& norm) {
  constexpr std::int64_t kBlockNumel = 4096;
  const std::int64_t block = std::max<std::int64_t>(1, kBlockNumel / std::max<std::int64_t>(1, cols));
  parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; row += block) {
      const std::int64_t last = std::min(end, row + block);
      loops().add(sum.dtype, a.data, b.data, sum.data, row * cols, last * cols);
      norm(row, last);
    }
  });
}

}  // namespace

void CpuKernels::add_layer_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma,
                                ConstTensorView beta, double eps, TensorView y, TensorView mean, TensorView rstd) {
  check_norm_sum("add_layer_norm", a, b, sum);
  const auto [rows, cols] =
      check_layer_norm("add_layer_norm", {.x = sum, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  enqueue(s, "add_layer_norm",
          {reads(a), reads(b), mica::writes(sum), reads(gamma), reads(beta), mica::writes(y), mica::writes(mean), mica::writes(rstd)},
          [=, rows = rows, cols = cols] {
            add_and_norm(a, b, sum, rows, cols, [&](std::int64_t begin, std::int64_t end) {
              loops().layer_norm(sum.dtype, sum.data, gamma.data, beta.data, eps, cols, y.data, static_cast<float*>(mean.data),
                                 static_cast<float*>(rstd.data), begin, end);
            });
          });
}

void CpuKernels::add_rms_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma, double eps,
                              TensorView y, TensorView rstd) {
  check_norm_sum("add_rms_norm", a, b, sum);
  const auto [rows, cols] = check_rms_norm("add_rms_norm", {.x = sum, .gamma = gamma, .y = y, .rstd = rstd});
  enqueue(s, "add_rms_norm", {reads(a), reads(b), mica::writes(sum), reads(gamma), mica::writes(y), mica::writes(rstd)},
          [=, rows = rows, cols = cols] {
            add_and_norm(a, b, sum, rows, cols, [&](std::int64_t begin, std::int64_t end) {
              loops().rms_norm(sum.dtype, sum.data, gamma.data, eps, cols, y.data, static_cast<float*>(rstd.data), begin, end);
            });
          });
}

void CpuKernels::layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                                     ConstTensorView rstd, TensorView dx, Write dx_mode, TensorView dgamma, TensorView dbeta,
                                     Write param_mode) {
  const auto [rows, cols] =
      check_layer_norm_backward({.dy = dy, .x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dx = dx, .dgamma = dgamma, .dbeta = dbeta});
  // Each thread sums its rows' share of dgamma and dbeta; the shares are then added in the threads' order.
  const bool has_params = dgamma || dbeta;
  const std::int64_t grain = row_grain(cols);
  const std::int64_t shares = has_params ? threads_for(rows, grain) : 0;
  const Buffer space = scratch(s, shares * 2 * cols * 4);
  enqueue(s, "layer_norm_backward",
          {reads(dy), reads(x), reads(gamma), reads(mean), reads(rstd), mica::writes(dx), mica::writes(dgamma), mica::writes(dbeta),
           writes(space)},
          [=, rows = rows, cols = cols, sums = static_cast<float*>(space.data())] {
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

void CpuKernels::rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y, TensorView rstd) {
  const auto [rows, cols] = check_rms_norm("rms_norm", {.x = x, .gamma = gamma, .y = y, .rstd = rstd});
  enqueue(s, "rms_norm", {reads(x), reads(gamma), mica::writes(y), mica::writes(rstd)}, [=, rows = rows, cols = cols] {
    parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
      loops().rms_norm(x.dtype, x.data, gamma.data, eps, cols, y.data, static_cast<float*>(rstd.data), begin, end);
    });
  });
}

void CpuKernels::rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView rstd,
                                   TensorView dx, Write dx_mode, TensorView dgamma, Write param_mode) {
  const auto [rows, cols] = check_rms_norm_backward({.dy = dy, .x = x, .gamma = gamma, .rstd = rstd, .dx = dx, .dgamma = dgamma});
  // As in layer_norm_backward: a share of dgamma for each thread, added in the threads' order.
  const std::int64_t grain = row_grain(cols);
  const std::int64_t shares = dgamma ? threads_for(rows, grain) : 0;
  const Buffer space = scratch(s, shares * cols * 4);
  enqueue(s, "rms_norm_backward", {reads(dy), reads(x), reads(gamma), reads(rstd), mica::writes(dx), mica::writes(dgamma), writes(space)},
          [=, rows = rows, cols = cols, sums = static_cast<float*>(space.data())] {
            std::fill(sums, sums + shares * cols, 0.0F);
            parallel_ranges_by_thread(rows, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
              loops().rms_norm_backward(x.dtype, dy.data, x.data, gamma.data, static_cast<const float*>(rstd.data), cols, dx.data, dx_mode,
                                        dgamma ? sums + thread * cols : nullptr, begin, end);
            });
            for (std::int64_t i = 1; i < shares; ++i) loops().add(DType::f32, sums, sums + i * cols, sums, 0, cols);
            if (dgamma) loops().scale(sums, DType::f32, 1.0F, dgamma.data, dgamma.dtype, param_mode, 0, cols);
          });
}

void CpuKernels::embedding(Stream& s, ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, TensorView y) {
  check_embedding(ids, tokens, positions, y);
  enqueue(s, "embedding", {reads(ids), reads(tokens), reads(positions), mica::writes(y)},
          [=] { embedding_forward(ids, tokens, positions, y); });
}

void CpuKernels::embedding_backward(Stream& s, ConstTensorView dy, ConstTensorView ids, TensorView dtokens, Write tokens_mode,
                                    TensorView dpositions, Write positions_mode, RowTurns* turns) {
  const std::int64_t width = dy.shape.back();
  const std::int64_t seq_len = ids.shape.back();
  check_embedding_backward(dy, ids, dtokens, dpositions);
  const Buffer space = scratch(s, embedding_backward_scratch_bytes(ids.numel(), width, omp_get_max_threads()));
  if (turns) {
    for_each_turn(s, *turns, dtokens.shape[0], tokens_mode, [&](int, const RowRange& rows, Write mode) {
      enqueue(s, "embedding_backward", {reads(dy), reads(ids), mica::writes(rows_of(dtokens, rows)), writes(space)},
              [=, memory = space.data()] { embedding_backward_tokens(dy, ids, dtokens, rows, mode, memory); });
    });
    turns->end(s);
    dtokens = {};
  }
  if (!dtokens && !dpositions) return;
  enqueue(s, "embedding_backward", {reads(dy), reads(ids), mica::writes(dtokens), mica::writes(dpositions), writes(space)},
          [=, memory = space.data()] {
            if (dtokens) embedding_backward_tokens(dy, ids, dtokens, {0, dtokens.shape[0]}, tokens_mode, memory);
            if (dpositions) embedding_backward_positions(dy, seq_len, dpositions, positions_mode, memory);
          });
}

void CpuKernels::dropout(Stream& s, ConstTensorView x, double p, const RandomKey& key, std::span<const std::int64_t> sequences,
                         TensorView y) {
  const auto batch = static_cast<std::int64_t>(sequences.size());
  check_dropout(x, p, batch, y);
  if (x.numel() == 0) return;
  const std::uint32_t threshold = dropout_threshold(p);
  const auto factor = static_cast<float>(1.0 / (1.0 - p));
  enqueue(s, "dropout", {reads(x), mica::writes(y)}, [=, ids = std::vector<std::int64_t>(sequences.begin(), sequences.end())] {
    const std::int64_t row_numel = x.numel() / batch;
    parallel_ranges(x.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin / row_numel; b * row_numel < end; ++b) {
        RandomKey row_key = key;
        row_key.sequence = static_cast<std::uint64_t>(ids[static_cast<std::size_t>(b)]);
        const std::int64_t row = b * row_numel;
        loops().dropout(x.dtype, x.slice(row, row_numel).data, y.slice(row, row_numel).data, row_key, threshold, factor,
                        std::max(begin - row, std::int64_t{0}), std::min(end - row, row_numel));
      }
    });
  });
}

}  // namespace mica::cpu
