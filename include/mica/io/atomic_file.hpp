#pragma once

#include <string>
#include <string_view>

namespace mica::io {

/// A file or folder appears under its name complete and on the disk, or not at all, whatever happens: write it under
/// another name beside it, then publish() it. (Rename within one file system replaces the name in one step.)
/// All of these throw IoError with path, cause and, for a full disk, the free space.

/// fsyncs `temporary` (a file or a folder; a folder's files must be synced by who wrote them), renames it to `path`,
/// which replaces a file of that name, and fsyncs the parent folder so that the new name survives a power cut.
void publish(const std::string& temporary, const std::string& path);

/// Small files (a manifest, a config): the whole text, atomically, through `path`.tmp.
void write_file_atomically(const std::string& path, std::string_view text);

/// The whole of a small file.
[[nodiscard]] std::string read_file(const std::string& path);

/// Makes creations, renames and deletions in the folder survive a power cut, where the mount can fsync a folder.
void fsync_directory(const std::string& path);

/// The folder a path lies in; "." for a bare name.
[[nodiscard]] std::string parent_directory(const std::string& path);

}  // namespace mica::io
