// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mica {

/// As hostname(1) prints it.
[[nodiscard]] std::string host_name();

/// Of the running kernel: changes with each boot, the same in all containers. Empty if /proc does not have it.
[[nodiscard]] std::string boot_id();

}  // namespace mica
