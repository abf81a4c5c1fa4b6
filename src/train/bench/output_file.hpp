// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: files that a flag asks for.

#include <string>
#include <string_view>

namespace mica::train::bench {

/// Before minutes of measuring; keeps what the file holds. @throws ConfigError with the flag, the path and the cause
void require_writable(std::string_view flag, const std::string& path);

/// @throws IoError, as require_writable()
void write_output(std::string_view flag, const std::string& path, std::string_view text);

}  // namespace mica::train::bench
