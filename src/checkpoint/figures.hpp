// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mica::checkpoint {

/// "1.50 GB", in decimal units.
[[nodiscard]] std::string bytes_text(std::int64_t bytes);
/// 124439808 -> "124,439,808"
[[nodiscard]] std::string grouped(std::int64_t value);
/// "1 file", "2 files"
[[nodiscard]] std::string count_text(std::int64_t count, std::string_view what);

}  // namespace mica::checkpoint
