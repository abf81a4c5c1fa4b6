// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica {

class Kernels;

/// Number of oneDNN products created so far, each at its first use, and the host time that took. Zero for other kernels.
struct ProductsMade {
  std::int64_t num = 0;
  double ms = 0;
};
[[nodiscard]] ProductsMade products_made(const Kernels& kernels);

}  // namespace mica
