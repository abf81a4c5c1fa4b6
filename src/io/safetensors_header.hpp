// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mica/core/dtype.hpp"

namespace mica::io::detail {

/// The only key of the header that is not a tensor's name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// The file's name of an element type that Mica writes. @throws Error for others than f32, bf16, f16.
[[nodiscard]] std::string_view safetensors_dtype_name(DType dtype);

}  // namespace mica::io::detail
