#pragma once

#include <string>

namespace mica::checkpoint {

/// A folder that appears complete under its name or not at all: files go into path() + ".tmp", publish() renames it.
/// The destructor deletes what was not published.
class NewFolder {
 public:
  /// @throws ConfigError if `path` or `path`.tmp exists already, or its parent does not; IoError.
  explicit NewFolder(const std::string& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where files are to be written.
  [[nodiscard]] const std::string& temporary() const { return temporary_; }
  /// fsyncs the folder (its files must be synced already) and gives it its name.
  void publish();

  /// What the constructor asks of the path, for a dry run. @throws ConfigError.
  static void check(const std::string& path);

 private:
  std::string path_, temporary_;
  bool is_published_ = false;
};

}  // namespace mica::checkpoint
