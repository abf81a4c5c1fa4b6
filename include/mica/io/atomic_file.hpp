// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <system_error>

namespace mica::io {

// All of these throw IoError with path, cause and, for a full disk, the free space.

/// A file or folder that appears under its name complete and synced to disk, or not at all: it is written under another name in
/// the same folder, then published. (A rename within one file system is atomic.) The destructor deletes what was not published;
/// a process that is killed leaves it behind.
class Publication {
 public:
  /// A file, which the caller writes as PATH.tmp.
  explicit Publication(const std::string& path);
  /// A folder, which the caller has made as `temporary_folder`.
  Publication(std::string path, std::string temporary_folder);
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& temporary() const { return temporary_; }

  /// fsyncs temporary() (the files in a folder must have been synced already), renames it to path(), which replaces a file of
  /// that name, and fsyncs the parent folder so that the new name survives a power cut.
  void publish();

 private:
  std::string path_, temporary_;
  bool is_folder_, is_published_ = false;
};

/// "x/" and "x" are the same folder; ".tmp" can only be appended to the second, which is returned.
[[nodiscard]] std::string without_slash(std::string path);

/// A new folder, made as PATH.tmp. @throws ConfigError (check_new).
[[nodiscard]] Publication new_folder(const std::string& path);

/// @throws ConfigError if `path` or PATH.tmp exists already, or there is no folder to make it in.
void check_new(const std::string& path);

/// Creates the folder and its parents. @param advice  ends the text of a ConfigError. @returns false if it existed already.
/// @throws ConfigError for a mistake; IoError: no space, a quota, a file system that fails.
bool make_folder(const std::string& path, std::string_view advice = "");

/// Whether a call failed because of the path that it was given: a permission, a name, a part that is missing. Otherwise the file system
/// failed, and may not the next time.
[[nodiscard]] bool is_mistake(const std::error_code& error);

/// Writes a small file (a manifest, a config) as a Publication.
void write_file_atomically(const std::string& path, std::string_view text);

/// The whole of a small file.
[[nodiscard]] std::string read_file(const std::string& path);

/// Makes creations, renames and deletions in the folder survive a power cut, if the file system can fsync a folder.
void fsync_directory(const std::string& path);

/// The folder that contains a path; "." for a bare name.
[[nodiscard]] std::string parent_directory(const std::string& path);

}  // namespace mica::io
