// SPDX-License-Identifier: Apache-2.0
#include "checksum_list.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>

#include "mica/checkpoint/manifest.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/file_checksum.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::string_view kFolderList = "checksums.crc32c";

struct ListedFile {
  std::uint32_t crc = 0;
  std::int64_t bytes = 0;
  std::string name;
};

/// @throws DamagedCheckpointError.
std::vector<ListedFile> read_lines(const std::string& path) {
  std::vector<ListedFile> lines;
  std::istringstream text(io::read_file(path));
  for (std::string each; std::getline(text, each);) {
    std::istringstream words(each);
    ListedFile line;
    words >> std::hex >> line.crc >> std::dec >> line.bytes >> std::ws;
    std::getline(words, line.name);
    const bool is_bare = !line.name.empty() && line.name.find('/') == std::string::npos;
    require<DamagedCheckpointError>(!words.fail() && line.bytes >= 0 && is_bare, "{}: line {} is not of the form 'checksum bytes name'",
                                    path, lines.size() + 1);
    lines.push_back(std::move(line));
  }
  require<DamagedCheckpointError>(!lines.empty(), "{}: lists no files", path);
  return lines;
}

/// Model files and configs that the folder's list does not name: a list that was cut off at the end of a line looks whole.
std::vector<std::string> unlisted_files(const std::string& list_path, const std::vector<ListedFile>& lines) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  if (fs::path(list_path).filename() != kFolderList) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(io::parent_directory(list_path))) {
    const fs::path& path = entry.path();
    const bool is_listed = std::ranges::find(lines, path.filename().string(), &ListedFile::name) != lines.end();
    if (!is_listed && (path.extension() == ".safetensors" || path.extension() == ".json")) found.push_back(path.string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string checksum_list_path(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? fmt::format("{}/{}", path, kFolderList) : path + ".crc32c";
}

std::string checksum_line(const std::string& path, const std::string& name) {
  io::RawFile file = io::RawFile::open_for_reading(path);
  const std::int64_t bytes = file.file_bytes();
  return fmt::format("{:08x} {} {}\n", io::file_crc32c(file, 0, bytes), bytes, name);
}

VerifyReport verify_checksum_list(const std::string& list_path, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  VerifyReport report;
  try {
    const std::vector<ListedFile> lines = read_lines(list_path);
    std::int64_t total = 0;
    for (const ListedFile& line : lines) total += line.bytes;
    for (const ListedFile& line : lines) {
      const std::string path = io::parent_directory(list_path) + "/" + line.name;
      try {
        io::RawFile file = io::RawFile::open_for_reading(path);
        require<DamagedCheckpointError>(file.file_bytes() == line.bytes,
                                        "{}: the file has {} bytes, expected {}: it is truncated or was replaced", path, file.file_bytes(),
                                        line.bytes);
        file.drop_cache();  // checks the disk, not a copy in memory
        const std::uint32_t found = io::file_crc32c(file, 0, line.bytes, [&](std::int64_t bytes) {
          report.bytes += bytes;
          if (progress) progress(report.bytes, total);
        });
        require<DamagedCheckpointError>(found == line.crc, "{}: is damaged: checksum {:08x}, expected {:08x}", path, found, line.crc);
      } catch (const Error& e) {  // damaged, missing, unreadable
        report.damage.emplace_back(e.what());
      }
    }
    for (const std::string& path : unlisted_files(list_path, lines)) {
      report.damage.push_back(fmt::format(
          "{}: has no line in {}, so its bytes are not checked: the list was cut off, or the file was added later", path, list_path));
    }
  } catch (const DamagedCheckpointError& e) {
    report.damage.emplace_back(e.what());
  }
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mica::checkpoint
