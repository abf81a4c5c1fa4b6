// SPDX-License-Identifier: Apache-2.0
#include "shared_file.hpp"

#include <cerrno>
#include <filesystem>
#include <random>
#include <regex>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mica::detail {
namespace {

constexpr const char* kFolder = "/dev/shm";

/// Removes the file if nobody holds a lock on it.
void remove_if_unlocked(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return;
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return;
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
}

}  // namespace

void SharedFile::remove_leftovers() {
  const std::regex of_make("mica-[0-9]+-[0-9a-f]{16}");
  std::error_code error;
  for (std::filesystem::directory_iterator at(kFolder, error), end; !error && at != end; at.increment(error)) {
    if (std::regex_match(at->path().filename().string(), of_make)) remove_if_unlocked(at->path());
  }
}

SharedFile SharedFile::make() {
  std::random_device random;
  const std::string name = fmt::format("/mica-{}-{:08x}{:08x}", ::getpid(), random(), random());
  SharedFile made;
  // It gets its name when it is locked, so that nobody ever sees it without a lock.
  made.fd_.reset(::open(kFolder, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!made) return {};
  const std::string unnamed = fmt::format("/proc/self/fd/{}", made.fd());
  if (::flock(made.fd(), LOCK_SH | LOCK_NB) != 0 ||
      ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, (kFolder + name).c_str(), AT_SYMLINK_FOLLOW) != 0) {
    const int error = errno;
    made.fd_.reset();
    errno = error;
    return {};
  }
  made.name_ = name;
  return made;
}

SharedFile SharedFile::open(const std::string& name, int access) {
  SharedFile opened;
  opened.fd_.reset(::shm_open(name.c_str(), access | O_CLOEXEC, 0));
  return opened;
}

SharedFile::SharedFile(SharedFile&& other) noexcept : fd_(std::move(other.fd_)), name_(std::exchange(other.name_, {})) {}

SharedFile& SharedFile::operator=(SharedFile&& other) noexcept {
  remove_name();
  fd_ = std::move(other.fd_);
  name_ = std::exchange(other.name_, {});
  return *this;
}

SharedFile::~SharedFile() { remove_name(); }

void SharedFile::remove_name() noexcept {
  if (!name_.empty()) ::shm_unlink(name_.c_str());
  name_.clear();
}

std::shared_ptr<std::byte> SharedFile::map(std::size_t bytes, int protection, int flags) const {
  void* const memory = fd_ ? ::mmap(nullptr, bytes, protection, MAP_SHARED | flags, fd(), 0) : MAP_FAILED;
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* first) { ::munmap(first, bytes); }};
}

}  // namespace mica::detail
