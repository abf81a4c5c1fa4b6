#pragma once

#include <string>

#include "mica/io/raw_file.hpp"

namespace mica::io {

/// Marks a folder as in use by one job: an exclusive lock on a file in it, which holds "host pid N". The lock belongs
/// to the open file and vanishes with the process, however it ends; the file stays behind, which means nothing.
class FileLock {
 public:
  /// @throws ConfigError if another process holds the lock, with what it wrote; IoError if the file cannot be opened.
  static FileLock acquire(const std::string& path);
  /// False where the file system has no locks (some cluster file systems): then nothing protects the folder; say so.
  [[nodiscard]] bool is_held() const { return is_held_; }

 private:
  FileLock(UniqueFd fd, bool is_held) : fd_(std::move(fd)), is_held_(is_held) {}
  UniqueFd fd_;
  bool is_held_;
};

}  // namespace mica::io
