// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/shape.hpp"

#include <fmt/ranges.h>

namespace mica {

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

}  // namespace mica
