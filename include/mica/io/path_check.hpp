// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mica::io {

/// Why there is no file to read at this path, for the text of an error: "no such file", "is a folder", or the system's words, such as
/// "Permission denied". Empty: a file is there.
[[nodiscard]] std::string why_no_file(const std::string& path);
/// The same for a folder.
[[nodiscard]] std::string why_no_folder(const std::string& path);

/// Whether it names a file of a folder and leads nowhere else: not empty, no slash, not "..".
[[nodiscard]] bool is_bare_name(const std::string& name);

/// Whether both paths lead to one file or folder that exists. @throws IoError if the file system does not say
[[nodiscard]] bool lead_to_one_place(const std::string& a, const std::string& b);

}  // namespace mica::io
