// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica {

class Kernels;

/// What making oneDNN's products has taken the host so far: each is made at its first use. Of other kernels nothing is known.
struct ProductsMade {
  std::int64_t num = 0;
  double ms = 0;
};
[[nodiscard]] ProductsMade products_made(const Kernels& kernels);

}  // namespace mica
