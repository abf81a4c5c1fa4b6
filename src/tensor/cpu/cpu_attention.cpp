// SPDX-License-Identifier: Apache-2.0
#include "../arguments.hpp"
#include "../attention_arguments.hpp"
#include "attention.hpp"
#include "cached_attention.hpp"
#include "cpu_kernels.hpp"
#include "rotary.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

void CpuKernels::attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) {
  expect_attention(shape, in, y, lse);
  if (y.numel() == 0) return;
  const Buffer space = scratch(s, attention_scratch_bytes(shape, y.dtype));
  enqueue(s, "attention", {reads(in.q), reads(in.k), reads(in.v), mica::writes(y), mica::writes(lse), writes(space)},
          [=, memory = space.data()] { attention_forward(shape, in, y, lse, memory); });
}

void CpuKernels::attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y,
                                    ConstTensorView lse, const Qkv& d_in) {
  expect_attention_backward(shape, dy, in, y, lse, d_in);
  if (y.numel() == 0) return;
  const Buffer space = scratch(s, attention_backward_scratch_bytes(shape, y.dtype));
  enqueue(s, "attention_backward",
          {reads(dy), reads(in.q), reads(in.k), reads(in.v), reads(y), reads(lse), mica::writes(d_in.q), mica::writes(d_in.k),
           mica::writes(d_in.v), writes(space)},
          [=, memory = space.data()] { cpu::attention_backward(shape, dy, in, y, lse, d_in, memory); });
}

void CpuKernels::attention_cached(Stream& s, const AttentionShape& shape, const ConstQkv& in, std::span<const double> inv_freq,
                                  const AttentionCache& cache, std::span<const CachedRow> rows, TensorView y) {
  expect_attention_cached(shape, in, inv_freq, cache, rows, y);
  if (y.numel() == 0) return;
  CachedAttention work{shape, in, {inv_freq.begin(), inv_freq.end()}, cache, {rows.begin(), rows.end()}, y};
  const Buffer space = scratch(s, work.scratch_bytes());
  enqueue(s, "attention_cached",
          {reads(in.q), reads(in.k), reads(in.v), mica::writes(cache.keys), mica::writes(cache.values), mica::writes(y), writes(space)},
          [work = std::move(work), memory = space.data()] { work.run(memory); });
}

void CpuKernels::rotary(Stream& s, ConstTensorView x, std::span<const double> inv_freq, Turn turn, TensorView y) {
  const auto head_dim = 2 * static_cast<std::int64_t>(inv_freq.size());
  expect("rotary", "x", x, x.numel(), kFloats);
  if (x.shape.num_dims() != 3 || head_dim == 0 || x.shape[2] % head_dim != 0) {
    refuse("rotary", "x", x, fmt::format("[batch, seq_len, heads * {}], two columns for each frequency", head_dim));
  }
  expect("rotary", "y", y, x.numel(), {x.dtype});
  if (x.numel() == 0) return;
  const Buffer space = scratch(s, rotary_scratch_bytes(head_dim, rotary_threads(x)));
  enqueue(s, "rotary", {reads(x), mica::writes(y), writes(space)},
          [=, frequencies = std::vector<double>(inv_freq.begin(), inv_freq.end()), memory = space.data()] {
            cpu::rotary(x, frequencies, turn, y, memory);
          });
}

}  // namespace mica::cpu
