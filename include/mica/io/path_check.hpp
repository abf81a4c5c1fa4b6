// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mica::io {

/// What hinders reading a file there, for the text of an error: "no such file", "is a folder", or the system's words, such as "Permission
/// denied". Empty: a file is there.
[[nodiscard]] std::string why_no_file(const std::string& path);
/// The same of a folder.
[[nodiscard]] std::string why_no_folder(const std::string& path);

}  // namespace mica::io
