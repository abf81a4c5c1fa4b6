#include "slow_paths.hpp"

#include <fmt/format.h>

namespace mica::cuda {

void SlowPaths::note_one_by_one(const char* what, const Shape& shape, DType dtype) {
  if (shape.numel() < kFewestElements) return;
  const auto name = static_cast<std::int64_t>(std::hash<std::string_view>{}(what));
  note("elements read one by one", {name, shape.rows(), shape.back(), static_cast<std::int64_t>(dtype)}, [&] {
    return std::pair(
        fmt::format("{} of {} {}", what, shape.to_string(), dtype_name(dtype)),
        std::string(
            "not all rows and arrays begin at addresses that 16 divides, as they do where 8 divides all widths"));
  });
}

}  // namespace mica::cuda
