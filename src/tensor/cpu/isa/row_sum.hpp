// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "elements.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

/// The sum of term(i, lanes) over [0, n); values in lanes past n are ignored, and terms may have side effects. kStreams
/// partial sums hide the latency of additions. Every kBlock elements are added up in double, so that the error does not
/// grow with the row (a vocabulary has 50257 classes).
template <int kStreams, class Term>
MICA_INLINE float row_sum(std::int64_t n, Term term) {
  constexpr std::int64_t kStep = kStreams * kLanes;
  constexpr std::int64_t kBlock = 1024 / kStep * kStep;
  double total = 0;
  std::int64_t i = 0;
  do {
    const std::int64_t end = n - i > kBlock ? i + kBlock : n;
    F32 acc[kStreams] = {};
    for (; i + kStep <= end; i += kStep) {
      for (int s = 0; s < kStreams; ++s) acc[s] += term(i + s * kLanes, Whole{});
    }
    for_vectors(i, end, [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { acc[0] += keep(term(j, lanes), lanes, F32{}); });
    i = end;
    for (int s = 1; s < kStreams; ++s) acc[0] += acc[s];
    total += static_cast<double>(sum_lanes(acc[0]));
  } while (i < n);
  return static_cast<float>(total);
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
