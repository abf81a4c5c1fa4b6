// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace mica {

/// "0.2.0", as CMake's project() says.
[[nodiscard]] std::string_view version();
/// "0.2.0 (commit 89abcdef)", or "(commit 89abcdef, modified)" where files differed from that commit, or "(commit unknown)".
/// Updated by every build (scripts/cmake/MicaVersion.cmake).
[[nodiscard]] std::string_view full_version();

}  // namespace mica
