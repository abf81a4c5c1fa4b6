#include "mica/io/atomic_file.hpp"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::io {
namespace {

void fsync_path(const std::string& path, int flags) {
  const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
  if (!fd) throw IoError(io_error_text(path, "open for fsync", errno));
  if (::fsync(fd.get()) != 0) throw IoError(io_error_text(path, "fsync", errno));
}

}  // namespace

std::string parent_directory(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = end == std::string::npos ? std::string::npos : path.rfind('/', end);
  if (slash == std::string::npos) return path.empty() || path[0] != '/' ? "." : "/";
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

void fsync_file(const std::string& path) { fsync_path(path, O_RDONLY); }

void fsync_directory(const std::string& path) { fsync_path(path, O_RDONLY | O_DIRECTORY); }

void publish(const std::string& temporary, const std::string& path) {
  fsync_path(temporary, O_RDONLY);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw IoError(io_error_text(path, fmt::format("rename of {} to it", temporary), errno));
  }
  fsync_directory(parent_directory(path));
}

bool exchange(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
    throw IoError(io_error_text(b, fmt::format("exchange of {} with it", a), errno));
  }
  fsync_directory(parent_directory(b));
  return true;
}

void write_file_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  try {
    RawFile file = RawFile::create(temporary);
    file.write_at(0, text.data(), static_cast<std::int64_t>(text.size()));
    file.close();
    publish(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

std::string read_file(const std::string& path) {
  RawFile file = RawFile::open_for_reading(path);
  std::string text(static_cast<std::size_t>(file.file_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<std::int64_t>(text.size()));
  return text;
}

}  // namespace mica::io
