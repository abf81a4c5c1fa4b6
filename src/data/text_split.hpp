// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: where a text is cut.

#include <cstdint>
#include <string_view>

#include "mica/io/raw_file.hpp"

namespace mica::data {

/// The byte at which the last `val_fraction` of a file begins, moved to the nearest end of a paragraph, else of a line,
/// else back to the start of a UTF-8 character. @returns file_bytes for fraction 0.
[[nodiscard]] std::int64_t find_split(io::RawFile& file, std::int64_t file_bytes, double val_fraction);

}  // namespace mica::data
