// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "mica/core/unique_fd.hpp"

namespace mica::io {

/// A file mapped into memory for reading. The mapping is shared with every process that maps the same file.
/// The file must not shrink while it is mapped: touching a page past the end kills the process (SIGBUS). check_unchanged() may
/// detect that earlier.
class MappedFile {
 public:
  /// @throws IoError (missing, unreadable, not a regular file). An empty file gives an empty mapping.
  static MappedFile open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// @throws IoError if the file has become shorter than the mapping.
  void check_unchanged() const;

 private:
  MappedFile(UniqueFd fd, std::span<const std::byte> bytes, std::string path);
  UniqueFd fd_;
  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace mica::io
