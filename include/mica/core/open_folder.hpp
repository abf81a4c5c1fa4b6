// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mica {

/// Opens a folder and closes it, before a look for a name in it that another node may just have made. This makes an NFS client ask the
/// server what is there: a client that has not found a name may go on saying so for half a minute. @returns 0 or errno
int open_folder(const std::string& folder);

/// Whether a file or folder exists, after opening the folder that it is in.
[[nodiscard]] bool is_there(const std::string& path);

/// The names in a folder that begin with `prefix`, but not those of files that are being written (*.tmp). Opens the folder, too.
/// @returns nullopt if the folder cannot be listed
[[nodiscard]] std::optional<std::vector<std::string>> names_with(const std::string& folder, std::string_view prefix);

}  // namespace mica
