// SPDX-License-Identifier: Apache-2.0
#include "mica/train/appended_file.hpp"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::train {

AppendedFile::AppendedFile(const std::string& path, std::function<void(const std::string&)> warn) : path_(path), warn_(std::move(warn)) {
  if (path.empty()) return;
  file_.reset(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  require<ConfigError>(static_cast<bool>(file_), "cannot write {}: {}; is the run folder writable?", path, errno_text(errno));
}

void AppendedFile::append(std::string_view record) {
  if (path_.empty()) return;
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);
  errno = 0;
  const ssize_t written = ::write(file_.get(), record.data(), record.size());
  if (written == static_cast<ssize_t>(record.size())) {
    is_failing_ = false;
    return;
  }
  const int error_number = errno == 0 ? ENOSPC : errno;
  if (written > 0) [[maybe_unused]]
    const int rc = ::ftruncate(file_.get(), before);  // no half records
  if (std::exchange(is_failing_, true)) return;
  warn_(fmt::format("{}; rows are left out until it can be written again", io::io_error_text(path_, "write", error_number)));
}

}  // namespace mica::train
