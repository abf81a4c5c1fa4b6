// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace mica::io {

/// A file mapped into memory for reading. The mapping is shared with every process that maps the same file. It keeps no file
/// descriptor, so thousands of files can be mapped at once.
/// The file must not shrink while it is mapped: of bytes() a page past the end ends the process (core/bus_error.hpp), and read() throws. Up
/// to there, what was cut from a page is zeros: check_unchanged() finds that. The file may be deleted, or replaced by another of the same
/// name: the mapping then still shows the old one.
class MappedFile {
 public:
  /// @throws IoError (missing, unreadable, not a regular file). An empty file gives an empty mapping.
  static MappedFile open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// Copies bytes from `offset` on, which lie in the mapping. @throws IoError where a page of them cannot be read
  void read(std::size_t offset, std::span<std::byte> out) const;
  /// Device and inode: equal for all names of one file.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> identity() const { return {device_, inode_}; }
  /// How pages that are not in memory are read: with many of their neighbours (the default), or alone.
  enum class Access { with_neighbours, alone };
  void set_access(Access access) const;
  /// Starts to read the pages of a range, and no others.
  void prefetch(std::span<const std::byte> range) const;
  /// @throws IoError if the file has become shorter than the mapping. Looks it up by its path, and does nothing if that names
  /// another file by now, or none.
  void check_unchanged() const;

 private:
  MappedFile() = default;
  std::span<const std::byte> bytes_;
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;  // which file it is
};

}  // namespace mica::io
