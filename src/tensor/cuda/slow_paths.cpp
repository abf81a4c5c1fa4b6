// SPDX-License-Identifier: Apache-2.0
#include "slow_paths.hpp"

#include <fmt/format.h>

namespace mica::cuda {

void SlowPaths::note_one_by_one(const char* what, const Shape& shape, DType dtype) {
  if (shape.numel() < kFewestElements) return;
  const auto name = static_cast<std::int64_t>(std::hash<std::string_view>{}(what));
  note("elements accessed one by one", {name, shape.rows(), shape.back(), static_cast<std::int64_t>(dtype)}, [&] {
    return std::pair(fmt::format("{} of {} {}", what, shape.to_string(), dtype_name(dtype)),
                     std::string("not all rows and arrays are aligned to 16 bytes, as they are if all widths are multiples of 8"));
  });
}

}  // namespace mica::cuda
