#include "new_folder.hpp"

#include <filesystem>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;

/// "x/" and "x" are the same folder; the first has no name to put ".tmp" behind.
std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

void NewFolder::check(const std::string& given) {
  const std::string path = without_slash(given);
  std::error_code error;
  require<ConfigError>(!fs::exists(fs::symlink_status(path, error)),
                       "{}: exists already; nothing is overwritten: delete it or choose another name", path);
  require<ConfigError>(
      !fs::exists(fs::symlink_status(path + ".tmp", error)),
      "{}.tmp: exists already: another conversion is writing it, or was stopped; in the latter case delete it", path);
  const std::string parent = io::parent_directory(path);
  require<ConfigError>(fs::is_directory(parent, error), "{}: there is no folder {} to make it in", path, parent);
}

NewFolder::NewFolder(const std::string& path) : path_(without_slash(path)), temporary_(path_ + ".tmp") {
  check(path_);
  std::error_code error;
  if (fs::create_directory(temporary_, error)) return;
  const std::string text = io::io_error_text(temporary_, "creation of the folder", error.value());
  if (error == std::errc::no_space_on_device) throw IoError(text);
  throw ConfigError(text);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!is_published_) fs::remove_all(temporary_, ignored);
}

void NewFolder::publish() {
  io::publish(temporary_, path_);
  is_published_ = true;
}

}  // namespace mica::checkpoint
