// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace mica {

/// As hostname(1) prints it.
[[nodiscard]] std::string host_name();

/// Of the running kernel: changes with each boot, the same in all containers. Empty if /proc does not have it.
[[nodiscard]] std::string boot_id();

/// The largest file that this process may write, in bytes (ulimit -f). A write past it fails, or ends the process (SIGXFSZ).
[[nodiscard]] std::int64_t max_file_bytes();

}  // namespace mica
