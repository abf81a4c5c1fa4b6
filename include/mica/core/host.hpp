// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mica {

/// As hostname(1) says it.
[[nodiscard]] std::string host_name();

/// Of the running kernel: another one after each boot, the same in all its containers. Empty if /proc does not tell.
[[nodiscard]] std::string boot_id();

}  // namespace mica
