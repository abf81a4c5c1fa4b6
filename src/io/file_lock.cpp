#include "mica/io/file_lock.hpp"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "mica/core/error.hpp"

namespace mica::io {
namespace {

std::string read_owner(int fd) {
  std::array<char, 256> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  return n > 0 ? std::string(text.data(), static_cast<std::size_t>(n)) : "unknown";
}

/// For people and messages only; the lock does not depend on it, so a failure to write it is no error.
void write_owner(int fd) {
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string text = fmt::format("{} pid {}", host.data(), ::getpid());
  if (::ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const ssize_t n = ::pwrite(fd, text.data(), text.size(), 0);
  }
}

}  // namespace

FileLock FileLock::acquire(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) throw IoError(io_error_text(path, "create", errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
    write_owner(fd.get());
    return {std::move(fd), true};
  }
  const int error_number = errno;
  require<ConfigError>(error_number != EWOULDBLOCK,
                       "{}: in use by another job ({}); wait for it to end, stop it, or choose another folder", path,
                       read_owner(fd.get()));
  if (error_number == ENOLCK || error_number == ENOSYS || error_number == EOPNOTSUPP) return {std::move(fd), false};
  throw IoError(io_error_text(path, "lock", error_number));
}

}  // namespace mica::io
