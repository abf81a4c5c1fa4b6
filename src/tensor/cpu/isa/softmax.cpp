// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"
#include "math.hpp"
#include "row_sum.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

float row_max(const float* x, std::int64_t n) {
  const F32 lowest = splat(-__builtin_inff());
  F32 acc[4] = {lowest, lowest, lowest, lowest};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int v = 0; v < 4; ++v) acc[v] = max_or_second(load(x + i + v * kLanes), acc[v]);
  }
  for_vectors(i, n, [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA {
    acc[0] = max_or_second(keep(load(x + j, lanes), lanes, lowest), acc[0]);
  });
  const F32 all = max_or_second(max_or_second(acc[0], acc[1]), max_or_second(acc[2], acc[3]));
  return max_lanes(all);
}

RowSoftmax row_softmax(const float* x, std::int64_t n) {
  const float max = row_max(x, n);
  return {max, row_sum<2>(n, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { return exp(load(x + i, lanes) - max); })};
}

float cross_entropy_row(const float* logits, std::int64_t n, std::int64_t target, RowSoftmax* softmax) {
  const RowSoftmax row = row_softmax(logits, n);
  if (softmax) *softmax = row;
  return static_cast<float>(__builtin_log(static_cast<double>(row.sum)) +
                            (static_cast<double>(row.max) - static_cast<double>(logits[target])));
}

void cross_entropy_backward_row(const float* logits, std::int64_t n, std::int64_t target, const RowSoftmax& softmax, float factor,
                                void* dlogits, DType dtype) {
  const float max = softmax.max;
  const float scale = factor / softmax.sum;
  const F32 at_target = exp(splat(logits[target] - max)) * scale - factor;  // read before it is overwritten
  with_type(dtype, [=](auto type) {
    auto* to = typed(dlogits, type);
    for_vectors(0, n,
                [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { store(to + i, exp(load(logits + i, lanes) - max) * scale, lanes); });
    store_part(to + target, at_target, 1);
  });
}

void exp_of(const float* x, float* y, std::int64_t n) {
  for_vectors(0, n, [=](std::int64_t i, auto lanes) { store(y + i, exp(load(x + i, lanes)), lanes); });
}

}  // namespace

void install_softmax(Loops& table) {
  table.cross_entropy_row = cross_entropy_row;
  table.cross_entropy_backward_row = cross_entropy_backward_row;
  table.exp = exp_of;
}

}  // namespace mica::cpu::MICA_ISA
