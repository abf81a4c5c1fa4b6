// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "mica/tensor/exact_sum.hpp"
#include "mica/tensor/philox.hpp"

#include "../arguments.hpp"
#include "cpu_kernels.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)
namespace {

constexpr std::int64_t kBlock = 65536;  // elements between two carries: limbs are far from overflow

using Limbs = std::array<std::int64_t, ExactSum::kLimbs>;

void add_limbs(std::span<const std::int64_t, ExactSum::kLimbs> from, std::span<std::int64_t, ExactSum::kLimbs> to) {
  for (std::size_t k = 0; k < ExactSum::kLimbs; ++k) to[k] += from[k];
  carry(to);
}

}  // namespace

void CpuKernels::exact_power_sum(Stream& s, ConstTensorView x, double p, TensorView limbs, Write mode) {
  const std::int64_t n = x.numel();
  expect("exact_power_sum", "x", x, n, {DType::f32, DType::bf16, DType::f16});
  expect("exact_power_sum", "limbs", limbs, ExactSum::kLimbs, {DType::i64});
  require(p > 0 && p < kInfNorm, "exact_power_sum: p is {}, expected more than 0 and finite (a maximum is exact anyway)", p);
  enqueue(s, "exact_power_sum", {reads(x), mica::writes(limbs)}, [x, p, limbs, mode, n] {
    std::vector<Limbs> sums(static_cast<std::size_t>(omp_get_max_threads()), Limbs{});
    parallel_ranges_by_thread(n, kBlock, [&](std::int64_t begin, std::int64_t end, int thread) {
      Limbs& sum = sums[static_cast<std::size_t>(thread)];
      for (std::int64_t at = begin; at < end; at += kBlock) {
        loops().exact_power_sum(x.dtype, x.data, p, at, std::min(end, at + kBlock), sum.data());
        carry(sum);
      }
    });
    const std::span<std::int64_t, ExactSum::kLimbs> out(limbs.as<std::int64_t>(), ExactSum::kLimbs);
    if (mode == Write::overwrite) std::ranges::fill(out, 0);
    for (const Limbs& sum : sums) add_limbs(sum, out);
  });
}

void CpuKernels::exact_sum_value(Stream& s, ConstTensorView limbs, TensorView out) {
  expect_cols("exact_sum_value", "limbs", limbs, ExactSum::kLimbs, {DType::i64});
  expect("exact_sum_value", "out", out, 1, {DType::f32});
  enqueue(s, "exact_sum_value", {reads(limbs), mica::writes(out)}, [limbs, out] {
    Limbs sum{};
    const auto* row = limbs.as<std::int64_t>();
    for (std::int64_t i = 0; i < limbs.shape.rows(); ++i, row += ExactSum::kLimbs) {
      add_limbs(std::span<const std::int64_t, ExactSum::kLimbs>(row, ExactSum::kLimbs), sum);
    }
    *out.as<float>() = static_cast<float>(mica::exact_sum_value(sum));
  });
}

void CpuKernels::fingerprint(Stream& s, ConstTensorView x, TensorView out) {
  const std::int64_t n = x.numel();
  expect("fingerprint", "x", x, n, {DType::f32});
  expect("fingerprint", "out", out, 1, {DType::i64});
  enqueue(s, "fingerprint", {reads(x), mica::writes(out)}, [x, out, n] {
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(omp_get_max_threads()), 0);
    parallel_ranges_by_thread(n, kElementGrain, [&](std::int64_t begin, std::int64_t end, int thread) {
      const auto* words = static_cast<const std::uint32_t*>(x.data);
      std::uint64_t sum = 0;
      for (std::int64_t i = begin; i < end; ++i) sum += mix64(static_cast<std::uint64_t>(i) << 32 | words[i]);
      sums[static_cast<std::size_t>(thread)] = sum;
    });
    std::uint64_t sum = 0;
    for (const std::uint64_t each : sums) sum += each;
    *out.as<std::int64_t>() = static_cast<std::int64_t>(sum);
  });
}

}  // namespace mica::cpu
