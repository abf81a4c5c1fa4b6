// SPDX-License-Identifier: Apache-2.0
#include "mica/io/raw_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"
#include "mica/io/atomic_file.hpp"

namespace mica::io {
namespace {

constexpr std::int64_t kPageBytes = 4096;         // file offsets and lengths of direct transfers
constexpr std::uintptr_t kMemoryAlignment = 512;  // the strictest alignment that drivers require
constexpr std::int64_t kBounceBytes = 4 << 20;
constexpr std::int64_t kMaxCallBytes = 1 << 30;  // Linux transfers at most 2 GiB - 4 KiB a call

struct Write {
  using Pointer = const std::byte*;
  static constexpr const char* kName = "write";
  static ssize_t call(int fd, Pointer data, std::int64_t bytes, std::int64_t offset) {
    return ::pwrite(fd, data, static_cast<std::size_t>(bytes), offset);
  }
  static void fill(std::byte* bounce, Pointer data, std::int64_t bytes) { std::memcpy(bounce, data, static_cast<std::size_t>(bytes)); }
  static void drain(const std::byte*, Pointer, std::int64_t) {}
};

struct Read {
  using Pointer = std::byte*;
  static constexpr const char* kName = "read";
  static ssize_t call(int fd, Pointer data, std::int64_t bytes, std::int64_t offset) {
    return ::pread(fd, data, static_cast<std::size_t>(bytes), offset);
  }
  static void fill(std::byte*, Pointer, std::int64_t) {}
  static void drain(const std::byte* bounce, Pointer data, std::int64_t bytes) {
    std::memcpy(data, bounce, static_cast<std::size_t>(bytes));
  }
};

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBuffer = std::unique_ptr<std::byte, Free>;

AlignedBuffer make_bounce_buffer() {
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kBounceBytes));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedBuffer(p);
}

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kMemoryAlignment == 0; }

/// The caller's request: its parts are transferred separately, but errors describe the whole.
struct Request {
  const std::string& path;
  std::int64_t offset;
  std::int64_t bytes;
};

template <class Transfer>
[[noreturn]] void throw_failed_call(const Request& request, std::int64_t done, int error_number) {
  const std::string attempt = fmt::format("{} of {} bytes at byte {} ({} done)", Transfer::kName, request.bytes, request.offset, done);
  throw FileError(io_error_text(request.path, attempt, error_number), error_number);
}

/// Bytes [done, end) of the request through the page cache.
template <class Transfer>
void transfer_cached(const Request& request, int fd, typename Transfer::Pointer data, std::int64_t done, std::int64_t end) {
  while (done < end) {
    const ssize_t n = Transfer::call(fd, data + done, std::min(end - done, kMaxCallBytes), request.offset + done);
    if (n > 0) {
      done += n;
    } else if (n == 0) {
      throw FileError(fmt::format("{}: the file ends at byte {}, but {} bytes from byte {} on were wanted: it is truncated", request.path,
                                  request.offset + done, request.bytes, request.offset),
                      0);
    } else if (errno != EINTR) {
      throw_failed_call<Transfer>(request, done, errno);
    }
  }
}

std::string open_files_text(int error_number) {
  rlimit limit{};
  if (error_number != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return fmt::format(" (this process may open {}); raise the limit with ulimit -n", limit.rlim_cur);
}

}  // namespace

std::optional<std::int64_t> free_bytes(const std::string& folder) {
  struct statvfs fs {};
  if (::statvfs(folder.c_str(), &fs) != 0 || fs.f_blocks == 0) return std::nullopt;
  const bool has_reserve = ::geteuid() == 0;  // blocks that only the superuser may use
  return static_cast<std::int64_t>(has_reserve ? fs.f_bfree : fs.f_bavail) * static_cast<std::int64_t>(fs.f_frsize);
}

std::string full_disk_text(const std::string& path, int error_number) {
  if (error_number != ENOSPC && error_number != EDQUOT) return "";
  const std::optional<std::int64_t> free = free_bytes(parent_directory(path));
  if (!free) return "; free space there or choose another folder";
  return fmt::format(" ({} bytes free); free space there or choose another folder", *free);
}

std::string io_error_text(const std::string& path, const std::string& attempt, int error_number) {
  return fmt::format("{}: {} failed: {}{}{}", path, attempt, errno_text(error_number), full_disk_text(path, error_number),
                     open_files_text(error_number));
}

bool FileError::is_missing() const {
  return error_number_ == 0 || error_number_ == ENOENT || error_number_ == ENOTDIR || error_number_ == EISDIR || error_number_ == ELOOP;
}

bool FileError::is_forbidden() const { return error_number_ == EACCES || error_number_ == EPERM; }

RawFile::RawFile(UniqueFd fd, UniqueFd direct_fd, std::string path)
    : fd_(std::move(fd)), direct_fd_(std::move(direct_fd)), path_(std::move(path)) {}

RawFile RawFile::open(const std::string& path, int flags, Caching caching) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!fd) {
    const int error_number = errno;
    const char* attempt = (flags & O_CREAT) != 0 ? "create" : (flags & O_RDWR) != 0 ? "open for writing" : "open for reading";
    throw FileError(io_error_text(path, attempt, error_number), error_number);
  }
  UniqueFd direct_fd;
  if (caching == Caching::direct) {
    const int direct_flags = (flags & ~(O_CREAT | O_TRUNC)) | O_DIRECT | O_CLOEXEC;
    direct_fd.reset(::open(path.c_str(), direct_flags));  // -1 where the file system has no direct transfers
  }
  return {std::move(fd), std::move(direct_fd), path};
}

RawFile RawFile::open_for_reading(const std::string& path, Caching caching) { return open(path, O_RDONLY, caching); }

RawFile RawFile::open_for_writing(const std::string& path, Caching caching) { return open(path, O_RDWR, caching); }

RawFile RawFile::create(const std::string& path, Caching caching) { return open(path, O_RDWR | O_CREAT | O_TRUNC, caching); }

RawFile RawFile::create_locked(const std::string& path) {
  for (;;) {
    RawFile file = open(path, O_RDWR | O_CREAT, Caching::page_cache);
    const bool is_taken = ::flock(file.fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    require<ConfigError>(!is_taken, "{}: another program is writing it; wait for that program to end, or choose another name", path);
    struct stat status {};
    if (::fstat(file.fd_.get(), &status) != 0) throw IoError(io_error_text(path, "stat", errno));
    if (status.st_nlink == 0) continue;  // its writer deleted it between the two calls
    if (::ftruncate(file.fd_.get(), 0) != 0) throw IoError(io_error_text(path, "truncation", errno));
    return file;
  }
}

std::int64_t RawFile::file_bytes() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) == 0) return status.st_size;
  const int error_number = errno;
  throw FileError(io_error_text(path_, "stat", error_number), error_number);
}

template <class Transfer>
std::int64_t RawFile::transfer_direct(std::int64_t offset, typename Transfer::Pointer data, std::int64_t bytes) {
  AlignedBuffer bounce;
  if (!is_aligned(data)) bounce = make_bounce_buffer();
  std::int64_t done = 0;
  while (done < bytes) {
    const std::int64_t wanted = std::min(bytes - done, bounce ? kBounceBytes : kMaxCallBytes);
    typename Transfer::Pointer memory = data + done;
    if (bounce) {
      Transfer::fill(bounce.get(), data + done, wanted);
      memory = bounce.get();
    }
    const ssize_t n = Transfer::call(direct_fd_.get(), memory, wanted, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && !bounce) {
      bounce = make_bounce_buffer();  // a driver that wants whole pages of memory
      continue;
    }
    if (n < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
      direct_fd_.reset();  // refused after all: the rest of this file goes through the page cache
      return done;
    }
    if (n < 0) throw_failed_call<Transfer>({path_, offset, bytes}, done, errno);
    const std::int64_t pages = n / kPageBytes * kPageBytes;
    if (bounce) Transfer::drain(bounce.get(), data + done, pages);
    done += pages;
    if (n != pages || n == 0) return done;  // a transfer that stops inside a page cannot continue directly
  }
  return done;
}

template <class Transfer>
void RawFile::transfer(std::int64_t offset, typename Transfer::Pointer data, std::int64_t bytes) {
  invariant(offset >= 0 && bytes >= 0, "a file range has offset >= 0 and bytes >= 0");
  invariant(static_cast<bool>(fd_), "the file is open");
  const Request request{path_, offset, bytes};
  std::int64_t done = 0;
  if (direct_fd_) {
    const std::int64_t head = std::min(bytes, round_up(offset, kPageBytes) - offset);
    const std::int64_t whole_pages = (bytes - head) / kPageBytes * kPageBytes;
    if (whole_pages > 0) {
      transfer_cached<Transfer>(request, fd_.get(), data, 0, head);
      done = head + transfer_direct<Transfer>(offset + head, data + head, whole_pages);
    }
  }
  transfer_cached<Transfer>(request, fd_.get(), data, done, bytes);
}

void RawFile::write_at(std::int64_t offset, const void* data, std::int64_t bytes) {
  transfer<Write>(offset, static_cast<const std::byte*>(data), bytes);
}

void RawFile::read_at(std::int64_t offset, void* data, std::int64_t bytes) { transfer<Read>(offset, static_cast<std::byte*>(data), bytes); }

void RawFile::reserve(std::int64_t bytes) {
  // fallocate(2) itself: posix_fallocate() would write a byte into every block of a file system without it.
  if (bytes == 0) return;
  int rc = 0;
  do {
    rc = ::fallocate(fd_.get(), 0, 0, bytes);
  } while (rc != 0 && errno == EINTR);
  if (rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  throw IoError(io_error_text(path_, fmt::format("allocation of {} bytes", bytes), errno));
}

void RawFile::sync() {
  if (::fsync(fd_.get()) != 0) throw IoError(io_error_text(path_, "fsync", errno));
}

void RawFile::drop_cache() { ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED); }

void RawFile::close() {
  direct_fd_.reset();
  if (!fd_) return;
  if (::close(fd_.release()) != 0) throw IoError(io_error_text(path_, "close", errno));
}

}  // namespace mica::io
