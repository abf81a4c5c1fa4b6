// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mica/checkpoint/verify.hpp"

namespace mica::checkpoint {

// [Note: checksum lists] Files in other programs' formats (a consolidated HDF5 file, a Hugging Face folder) have no
// room for checksums. So a small text file lies beside them, with one line per file:
//   <CRC-32C of all its bytes, 8 hexadecimal digits> <bytes> <name>
// For MODEL.h5 it is MODEL.h5.crc32c, for a folder checksums.crc32c inside it.

/// The path of the list for a file or folder, which may not exist.
[[nodiscard]] std::string checksum_list_path(const std::string& path);
/// The line for a file. @param name  its final name. @throws IoError.
[[nodiscard]] std::string checksum_line(const std::string& path, const std::string& name);
/// Checks the files that a list names. Model files and configs that the folder's list does not name count as damage, too.
/// @param progress  as in verify().
[[nodiscard]] VerifyReport verify_checksum_list(const std::string& list_path,
                                                const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace mica::checkpoint
