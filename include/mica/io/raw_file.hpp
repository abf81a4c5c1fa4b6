#pragma once

#include <cstdint>
#include <string>

#include "mica/core/unique_handle.hpp"

namespace mica::io {

struct FdTraits {
  using type = int;
  static type null() { return -1; }
  static void close(type fd) noexcept;
};
using UniqueFd = UniqueHandle<FdTraits>;

/// Go past the page cache where possible? Direct transfers of big data are the fastest and steadiest, and leave the
/// memory of the node alone; where a file system refuses them (tmpfs), the same calls use the page cache, with the same
/// result.
enum class Caching { page_cache, direct };

/// A file by byte offsets. Calls loop until every byte is done and throw IoError (path, offset, bytes wanted, cause,
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

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t file_bytes() const;
  /// False as well once the file system has refused a direct transfer.
  [[nodiscard]] bool is_direct() const { return static_cast<bool>(direct_fd_); }

  void write_at(std::int64_t offset, const void* data, std::int64_t bytes);
  /// @throws IoError too if the file ends before the range does.
  void read_at(std::int64_t offset, void* data, std::int64_t bytes);

  /// Makes the file at least this long with all its blocks taken from the disk, so that a full disk is known before the
  /// first byte is written. Content is kept. Does nothing where the file system cannot. @throws IoError (free space).
  void reserve(std::int64_t bytes);
  /// Everything written is on the disk.
  void sync();
  /// Asks the system to forget cached pages, so that the next read comes from the disk. Call sync() first.
  void drop_cache();
  /// The checked path (a network file system may report errors here); the destructor drops them.
  void close();

 private:
  RawFile(UniqueFd fd, UniqueFd direct_fd, std::string path);
  static RawFile open(const std::string& path, int flags, Caching caching);
  template <class Transfer>
  void transfer(std::int64_t offset, typename Transfer::Pointer data, std::int64_t bytes);
  /// Whole pages, past the page cache. @returns bytes done; fewer than asked if the rest must go through the page
  /// cache.
  template <class Transfer>
  std::int64_t transfer_direct(std::int64_t offset, typename Transfer::Pointer data, std::int64_t bytes);

  UniqueFd fd_;
  UniqueFd direct_fd_;  ///< the same file opened with O_DIRECT, or null
  std::string path_;
};

/// What to add to an error's text if the disk is full (or the quota used up): the free space and advice; "" otherwise.
[[nodiscard]] std::string full_disk_text(const std::string& path, int error_number);

/// A text for IoError about a failed system call: path, what was tried, errno's text, and advice for a full disk.
[[nodiscard]] std::string io_error_text(const std::string& path, const std::string& attempt, int error_number);

}  // namespace mica::io
