// SPDX-License-Identifier: Apache-2.0
#include "mica/io/atomic_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::io {
namespace {

namespace fs = std::filesystem;

/// The errno values of mounts that cannot fsync a folder; nothing more can be done there.
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

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Publication::Publication(const std::string& path) : path_(path), temporary_(path + ".tmp"), is_folder_(false) {}

Publication::Publication(std::string path, std::string temporary_folder)
    : path_(std::move(path)), temporary_(std::move(temporary_folder)), is_folder_(true) {}

Publication::~Publication() {
  std::error_code ignored;
  if (is_published_) return;
  if (is_folder_) {
    fs::remove_all(temporary_, ignored);
  } else {
    ::unlink(temporary_.c_str());  // never a folder of that name, which another program made
  }
}

void Publication::publish() {
  fsync_path(temporary_);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw IoError(io_error_text(path_, fmt::format("rename of {} to it", temporary_), errno));
  }
  is_published_ = true;
  fsync_directory(parent_directory(path_));
}

Publication new_folder(const std::string& given) {
  const std::string path = without_slash(given);
  check_new(path);
  if (!make_folder(path + ".tmp")) check_new(path);  // another program has just made it
  return {path, path + ".tmp"};
}

void check_new(const std::string& given) {
  const std::string path = without_slash(given);
  std::error_code error;
  require<ConfigError>(!fs::exists(fs::symlink_status(path, error)),
                       "{}: exists already; nothing is overwritten: delete it or choose another name", path);
  require<ConfigError>(!fs::exists(fs::symlink_status(path + ".tmp", error)),
                       "{}.tmp: exists already: another program is writing it, or was stopped; in the latter case delete it", path);
  const std::string parent = parent_directory(path);
  require<ConfigError>(fs::is_directory(parent, error), "{}: there is no folder {} to make it in", path, parent);
}

bool make_folder(const std::string& path, std::string_view advice) {
  std::error_code error;
  const bool is_made = fs::create_directories(path, error);
  if (!error) return is_made;
  const std::string text = io_error_text(path, "creation of the folder", error.value());
  require<ConfigError>(!is_mistake(error), "{}{}", text, advice);
  throw IoError(text);
}

bool is_mistake(const std::error_code& error) {
  constexpr std::array kMistakes{std::errc::permission_denied,
                                 std::errc::operation_not_permitted,
                                 std::errc::read_only_file_system,
                                 std::errc::no_such_file_or_directory,
                                 std::errc::not_a_directory,
                                 std::errc::file_exists,
                                 std::errc::too_many_symbolic_link_levels,
                                 std::errc::filename_too_long};
  return std::ranges::any_of(kMistakes, [&](std::errc each) { return error == each; });
}

std::string parent_directory(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = end == std::string::npos ? std::string::npos : path.rfind('/', end);
  if (slash == std::string::npos) return path.empty() || path[0] != '/' ? "." : "/";
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

void fsync_directory(const std::string& path) { fsync_path(path); }

void write_file_atomically(const std::string& path, std::string_view text) {
  Publication publication(path);
  RawFile file = RawFile::create(publication.temporary());
  file.write_at(0, text.data(), static_cast<std::int64_t>(text.size()));
  file.close();
  publication.publish();
}

std::string read_file(const std::string& path) {
  RawFile file = RawFile::open_for_reading(path);
  std::string text(static_cast<std::size_t>(file.file_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<std::int64_t>(text.size()));
  return text;
}

}  // namespace mica::io
