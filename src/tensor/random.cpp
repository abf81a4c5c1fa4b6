// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/random.hpp"

#include <cmath>

#include "mica/core/error.hpp"

#include "scalar_math.hpp"

namespace mica {

float random_normal(const RandomKey& key, std::uint64_t element) { return normal_from_word<ScalarMath>(random_word(key, element)); }

std::uint32_t dropout_threshold(double p) {
  require<ConfigError>(p >= 0 && p < 1, "dropout probability {} is outside [0, 1): choose one inside, 0 for no dropout", p);
  return static_cast<std::uint32_t>(std::fmin(std::nearbyint(p * 0x1p32), 0x1p32 - 1));
}

}  // namespace mica
