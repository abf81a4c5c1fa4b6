// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace mica::checkpoint {

/// Begins the list of files in a manifest's text, its last key but for the checksum.
inline constexpr std::string_view kManifestFiles = ",\n \"files\": [";
/// The last lines of a manifest. The checksum covers all text before them.
[[nodiscard]] std::string manifest_trailer(std::string_view covered);

}  // namespace mica::checkpoint
