// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "mica/tensor/exact_sum.hpp"
#include "mica/tensor/philox.hpp"

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {

/// Adds one number >= 0, bit by bit.
void add_number(double x, std::int64_t* limbs) {
  if (std::isnan(x)) return void(++limbs[ExactSum::kNans]);
  for (int bit = 255; x != 0 && bit >= ExactSum::kLowestExponent; --bit) {
    if (x >= std::ldexp(2.0, bit)) return void(++limbs[ExactSum::kInfinities]);
    if (x < std::ldexp(1.0, bit)) continue;
    x -= std::ldexp(1.0, bit);
    const int above = bit - ExactSum::kLowestExponent;
    limbs[above / ExactSum::kLimbBits] += std::int64_t{1} << above % ExactSum::kLimbBits;
  }
}

}  // namespace

void ReferenceKernels::exact_power_sum(Stream& s, ConstTensorView x, double p, TensorView limbs, Write mode) {
  expect_numel(limbs, ExactSum::kLimbs, "exact_power_sum: limbs of an ExactSum");
  s.submit("exact_power_sum", {reads(x), writes(limbs)}, [=] {
    const std::span<std::int64_t, ExactSum::kLimbs> sum(limbs.as<std::int64_t>(), ExactSum::kLimbs);
    if (mode == Write::overwrite) std::fill(sum.begin(), sum.end(), 0);
    for (const double e : values(x)) {
      add_number(p == 2 ? e * e : std::pow(std::abs(e), p), sum.data());
      carry(sum);
    }
  });
}

void ReferenceKernels::exact_sum_value(Stream& s, ConstTensorView limbs, TensorView out) {
  s.submit("exact_sum_value", {reads(limbs), writes(out)}, [=] {
    std::array<std::int64_t, ExactSum::kLimbs> sum{};
    for (std::int64_t i = 0; i < limbs.numel(); ++i) {
      sum[static_cast<std::size_t>(i % ExactSum::kLimbs)] += limbs.as<std::int64_t>()[i];
      if ((i + 1) % ExactSum::kLimbs == 0) carry(sum);
    }
    store(out, {mica::exact_sum_value(sum)});
  });
}

void ReferenceKernels::fingerprint(Stream& s, ConstTensorView x, TensorView out) {
  s.submit("fingerprint", {reads(x), writes(out)}, [=] {
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      sum += mix64(static_cast<std::uint64_t>(i) << 32 | std::bit_cast<std::uint32_t>(x.as<float>()[i]));
    }
    *out.as<std::int64_t>() = static_cast<std::int64_t>(sum);
  });
}

}  // namespace mica::reference
