// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mica/checkpoint/verify.hpp"

namespace mica::checkpoint {

// [Note: checksum lists] Files in other programs' formats (a consolidated HDF5 file, a Hugging Face folder) have no
// room for checksums, and the programs that read them want no change. A small text file lies beside them, one line a
// file:
//   <CRC-32C of all its bytes, 8 hexadecimal digits> <bytes> <name>
// MODEL.h5 has MODEL.h5.crc32c, a folder has checksums.crc32c in it.

/// Where the list for a file or folder is, or would be.
[[nodiscard]] std::string checksum_list_path(const std::string& path);
/// The line of a file of this content. @param name  that it will have. @throws IoError.
[[nodiscard]] std::string checksum_line(const std::string& path, const std::string& name);
/// Checks the files that a list names. @param progress  as verify()'s.
[[nodiscard]] VerifyReport verify_checksum_list(const std::string& list_path,
                                                const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace mica::checkpoint
