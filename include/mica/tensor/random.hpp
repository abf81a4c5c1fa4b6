// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/core/host_device.hpp"
#include "mica/tensor/philox.hpp"

namespace mica {

/// Word number `element` of the key's stream.
[[nodiscard]] constexpr std::uint32_t random_word(const RandomKey& key, std::uint64_t element) {
  return random_block(key, element / 4)[element % 4];
}

/// Normal number `element` of the key's stream (mean 0, deviation 1): a function of random_word() alone, computed with
/// correctly rounded float operations, so that every device gives the same bits. |value| < 6.4.
[[nodiscard]] float random_normal(const RandomKey& key, std::uint64_t element);

/// Dropout keeps the elements whose word is >= this threshold. @param p  in [0, 1).
[[nodiscard]] std::uint32_t dropout_threshold(double p);

/// The formula of random_normal, written once for scalars, vectors and devices. [Note: normal numbers]
/// One word gives one number, by inversion: bit 31 is the sign, the other bits k give a tail probability
/// p = (k + 1/2) / 2^32 in (0, 1/2), and |z| = -quantile(p). Both p and 1/2 - p are made from integers, so neither the
/// tail (to 6.3 deviations) nor the centre loses digits. The quantile is Wichura's algorithm AS 241 (Applied
/// Statistics 37, 1988), single precision, relative error 1e-7; its third region, p < e^-25, cannot occur here.
/// `Math` gives Float and Word (scalars or vectors of equally many lanes), to_float (of a non-negative int), bits,
/// from_bits and sqrt. The including file must be compiled without contraction to fused multiply-adds.
template <class Math>
[[gnu::always_inline]] MICA_HOST_DEVICE inline typename Math::Float normal_from_word(typename Math::Word word) {
  using Float = typename Math::Float;
  using Word = typename Math::Word;
  const Word k = word & 0x7fffffffU;
  const Float p = (Math::to_float(k) + 0.5F) * 0x1p-32F;
  const Float q = (Math::to_float(0x7fffffffU - k) + 0.5F) * 0x1p-32F;  // 1/2 - p

  // -log(p) = 23.. 0.69: p = 2^e * m with m in [sqrt(1/2), sqrt(2)), log(m) = 2 atanh((m-1)/(m+1)).
  const Word shifted = Math::bits(p) - 0x3f3504f3U;
  const Word fraction = (shifted & 0x007fffffU) + 0x3f3504f3U;
  const Float m = Math::from_bits(fraction);
  const Float minus_e = Math::to_float(~shifted >> 23) + 1.0F;  // shifted is negative as an int
  const Float t = (m - 1.0F) / (m + 1.0F);
  const Float t2 = t * t;
  const Float log_m = t * (2.0F + t2 * (0.66666816F + t2 * (0.39974795F + t2 * 0.29925651F)));
  const Float r_tail = Math::sqrt(minus_e * 0.69314718F - log_m) - 1.6F;
  const Float r_centre = 0.180625F - q * q;

  const auto centre = q <= 0.425F;
  const Float r = centre ? r_centre : r_tail;
  const Float n0 = centre ? Float{} + 3.3871327179F : Float{} + 1.4234372777F;
  const Float n1 = centre ? Float{} + 50.434271938F : Float{} + 2.7568153900F;
  const Float n2 = centre ? Float{} + 159.29113202F : Float{} + 1.3067284816F;
  const Float n3 = centre ? Float{} + 59.109374720F : Float{} + 0.17023821103F;
  const Float d1 = centre ? Float{} + 17.895169469F : Float{} + 0.73700164250F;
  const Float d2 = centre ? Float{} + 78.757757664F : Float{} + 0.12021132975F;
  const Float d3 = centre ? Float{} + 67.187563600F : Float{};
  const Float numerator = ((n3 * r + n2) * r + n1) * r + n0;
  const Float denominator = ((d3 * r + d2) * r + d1) * r + 1.0F;
  const Float magnitude = (centre ? q : Float{} + 1.0F) * numerator / denominator;
  return Math::from_bits(Math::bits(magnitude) | (word & 0x80000000U));
}

}  // namespace mica
