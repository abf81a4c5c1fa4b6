// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::nn {

/// @throws ConfigError naming the first of these keys of [model] whose value is not positive
inline void expect_positive(std::initializer_list<std::pair<const char*, std::int64_t>> keys) {
  for (const auto& [key, value] : keys) require<ConfigError>(value > 0, "model.{} is {}, expected a positive number", key, value);
}

}  // namespace mica::nn
