#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mica/core/dtype.hpp"

namespace mica::io::detail {

/// The file's name of an element type that Mica writes. @throws Error for others than f32, bf16, f16.
[[nodiscard]] std::string_view safetensors_dtype_name(DType dtype);

/// A name from a file, fit for a one-line error text: in quotes, control characters escaped, cut where it is very long.
[[nodiscard]] std::string quoted_name(std::string_view name);

}  // namespace mica::io::detail
