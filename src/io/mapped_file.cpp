// SPDX-License-Identifier: Apache-2.0
#include "mica/io/mapped_file.hpp"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mica/core/bus_error.hpp"
#include "mica/core/error.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::io {

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), path_(std::move(other.path_)), device_(other.device_), inode_(other.inode_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile MappedFile::open(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // of a pipe, open() would wait for a writer
  if (!fd) throw IoError(io_error_text(path, "open for reading", errno));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw IoError(io_error_text(path, "stat", errno));
  require<IoError>(S_ISREG(status.st_mode), "{}: is {}, expected a regular file", path,
                   S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe");
  MappedFile file;
  file.path_ = path;
  file.device_ = status.st_dev;
  file.inode_ = status.st_ino;
  if (status.st_size > 0) {
    const auto length = static_cast<std::size_t>(status.st_size);
    void* p = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (p == MAP_FAILED) throw IoError(io_error_text(path, fmt::format("mapping of {} bytes", length), errno));
    file.bytes_ = {static_cast<const std::byte*>(p), length};
  }
  return file;
}

void MappedFile::read(std::size_t offset, std::span<std::byte> out) const {
  invariant(offset <= bytes_.size() && out.size() <= bytes_.size() - offset, "a range of bytes lies in its file");
  if (copy_pages(out, bytes_.data() + offset)) return;
  check_unchanged();
  throw IoError(fmt::format("{}: bytes {} to {} cannot be read: the disk or the file server failed", path_, offset, offset + out.size()));
}

void MappedFile::set_access(Access access) const {  // advice: where it cannot be taken, reading is only slower
  if (bytes_.empty()) return;
  (void)::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), access == Access::alone ? MADV_RANDOM : MADV_NORMAL);
}

void MappedFile::prefetch(std::span<const std::byte> range) const {
  static const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = static_cast<std::size_t>(range.data() - bytes_.data()) % page_bytes;  // the mapping begins with a page
  if (before + range.size() <= page_bytes) return;                                                 // is read by the first access
  (void)::madvise(const_cast<std::byte*>(range.data() - before), before + range.size(), MADV_WILLNEED);
}

void MappedFile::check_unchanged() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return;
  if (status.st_dev != device_ || status.st_ino != inode_) return;
  require<IoError>(static_cast<std::uint64_t>(status.st_size) >= bytes_.size(),
                   "{}: the file shrank from {} to {} bytes while in use; do not write files that a run reads", path_, bytes_.size(),
                   status.st_size);
}

}  // namespace mica::io
