// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mica/core/error.hpp"
#include "mica/core/unique_fd.hpp"

namespace mica::io {

/// Whether to bypass the page cache. Direct transfers (O_DIRECT) of large data are the fastest and steadiest, and use no
/// page-cache memory. Where a file system refuses them (tmpfs), the same calls use the page cache, with the same result.
enum class Caching { page_cache, direct };

/// A call on a file failed, or the file ends too early.
class FileError : public IoError {
 public:
  /// @param error_number  errno; 0: the file ends too early
  FileError(const std::string& text, int error_number) : IoError(text), error_number_(error_number) {}

  /// There is no such file, or it ends too early. Otherwise trying again may help.
  [[nodiscard]] bool is_missing() const;
  [[nodiscard]] bool is_forbidden() const;

 private:
  int error_number_;
};

/// A file by byte offsets. Calls loop until every byte is done and throw FileError (path, offset, bytes wanted, cause,
/// free space on a full disk). Any offset, length and memory is allowed; Caching::direct moves whole 4 KiB pages
/// directly (through an aligned buffer if the memory is not aligned to 512 bytes) and the ragged ends through the page
/// cache. Used beside HDF5 at Hdf5Dataset::file_offset(): write after Hdf5File::close(), which sets the file's length.
/// @threads  different threads may read and write disjoint ranges of one RawFile under Caching::page_cache; not under
/// direct.
class RawFile {
 public:
  static RawFile open_for_reading(const std::string& path, Caching caching = Caching::page_cache);
  /// An existing file, for writing and reading; nothing is truncated.
  static RawFile open_for_writing(const std::string& path, Caching caching = Caching::page_cache);
  /// A new file, or an existing one made empty.
  static RawFile create(const std::string& path, Caching caching = Caching::page_cache);
  /// Like create(), but locked until the file is closed or its process ends, where the file system supports locks.
  /// @throws ConfigError if the lock is taken; the file is then left as it was.
  static RawFile create_locked(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t file_bytes() const;
  /// Also false once the file system has refused a direct transfer.
  [[nodiscard]] bool is_direct() const { return static_cast<bool>(direct_fd_); }

  void write_at(std::int64_t offset, const void* data, std::int64_t bytes);
  /// @throws IoError also if the file ends before the range does.
  void read_at(std::int64_t offset, void* data, std::int64_t bytes);

  /// Allocates at least this many bytes on the disk, so that a full disk is noticed before the first byte is written. Content
  /// is kept. Does nothing if the file system cannot do it. @throws IoError (free space).
  void reserve(std::int64_t bytes);
  /// Waits until everything written is on the disk (fsync).
  void sync();
  /// Asks the system to drop cached pages, so that the next read comes from the disk. Call sync() first.
  void drop_cache();
  /// Closes and reports errors (network file systems may report them only here); the destructor ignores them.
  void close();

 private:
  RawFile(UniqueFd fd, UniqueFd direct_fd, std::string path);
  static RawFile open(const std::string& path, int flags, Caching caching);
  template <class Transfer>
  void transfer(std::int64_t offset, typename Transfer::Pointer data, std::int64_t bytes);
  /// Transfers whole pages, bypassing the page cache. @returns bytes done; fewer than requested if the rest must go through
  /// the page cache.
  template <class Transfer>
  std::int64_t transfer_direct(std::int64_t offset, typename Transfer::Pointer data, std::int64_t bytes);

  UniqueFd fd_;
  UniqueFd direct_fd_;  ///< the same file opened with O_DIRECT, or null
  std::string path_;
};

/// Bytes that this process may still write to the folder's file system; nothing if that does not report it. Ignores quotas.
[[nodiscard]] std::optional<std::int64_t> free_bytes(const std::string& folder);

/// Text to add to an error if the disk is full (or the quota used up): the free space and advice; "" otherwise.
[[nodiscard]] std::string full_disk_text(const std::string& path, int error_number);

/// Text of an IoError about a failed system call: path, what was tried, errno's text, and advice for a full disk.
[[nodiscard]] std::string io_error_text(const std::string& path, const std::string& attempt, int error_number);

}  // namespace mica::io
