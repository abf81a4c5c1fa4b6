#include "mica/io/atomic_file.hpp"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::io {
namespace {

/// Some mounts cannot fsync a folder and say so with these; nothing more can be done on them.
bool is_missing_feature(int error_number) { return error_number == EINVAL || error_number == EBADF; }

/// A file or a folder.
void fsync_path(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw IoError(io_error_text(path, "open for fsync", errno));
  if (::fsync(fd.get()) == 0) return;
  const int error_number = errno;
  struct stat status {};
  const bool is_folder = ::fstat(fd.get(), &status) == 0 && S_ISDIR(status.st_mode);
  if (!is_folder || !is_missing_feature(error_number)) throw IoError(io_error_text(path, "fsync", error_number));
}

}  // namespace

std::string parent_directory(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = end == std::string::npos ? std::string::npos : path.rfind('/', end);
  if (slash == std::string::npos) return path.empty() || path[0] != '/' ? "." : "/";
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

void fsync_directory(const std::string& path) { fsync_path(path); }

void publish(const std::string& temporary, const std::string& path) {
  fsync_path(temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw IoError(io_error_text(path, fmt::format("rename of {} to it", temporary), errno));
  }
  fsync_directory(parent_directory(path));
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
