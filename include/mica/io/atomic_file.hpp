#pragma once

#include <string>
#include <string_view>

namespace mica::io {

// All of these throw IoError with path, cause and, for a full disk, the free space.

/// A file or folder that appears under its name complete and on the disk, or not at all, whatever happens: it is written
/// under another name beside it, then published. (Rename within one file system replaces the name in one step.) What was
/// not published is deleted at the end; a process that is killed leaves it behind.
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

  /// fsyncs temporary() (a folder's files must be synced by who wrote them), renames it to path(), which replaces a file
  /// of that name, and fsyncs the parent folder so that the new name survives a power cut.
  void publish();

 private:
  std::string path_, temporary_;
  bool is_folder_, is_published_ = false;
};

/// A folder that is not there yet, made as PATH.tmp. @throws ConfigError (check_new).
[[nodiscard]] Publication new_folder(const std::string& path);

/// @throws ConfigError if `path` or PATH.tmp exists already, or there is no folder to make it in.
void check_new(const std::string& path);

/// Makes the folder and those above it; one that cannot be made is the user's to change, unless the disk is full.
/// @param advice  ends the text.   @returns false where it was there already.   @throws ConfigError.
bool make_folder(const std::string& path, std::string_view advice = "");

/// Small files (a manifest, a config): the whole text, as a Publication.
void write_file_atomically(const std::string& path, std::string_view text);

/// The whole of a small file.
[[nodiscard]] std::string read_file(const std::string& path);

/// Makes creations, renames and deletions in the folder survive a power cut, where the mount can fsync a folder.
void fsync_directory(const std::string& path);

/// The folder a path lies in; "." for a bare name.
[[nodiscard]] std::string parent_directory(const std::string& path);

}  // namespace mica::io
