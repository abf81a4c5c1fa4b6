// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>

namespace mica::test {

/// The number in an environment variable, as scripts/test.sh --soak sets it; `otherwise` if it isn't set.
inline std::int64_t environment_number(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoll(text) : otherwise;
}

}  // namespace mica::test
