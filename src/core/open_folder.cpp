// SPDX-License-Identifier: Apache-2.0
#include "mica/core/open_folder.hpp"

#include <cerrno>
#include <filesystem>
#include <utility>

#include <dirent.h>

namespace mica {

namespace fs = std::filesystem;

int open_folder(const std::string& folder) {
  DIR* opened = ::opendir(folder.c_str());
  if (opened == nullptr) return errno;
  ::closedir(opened);
  return 0;
}

bool is_there(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  (void)open_folder(folder.empty() ? "." : folder.string());
  std::error_code none;
  return fs::exists(path, none);
}

std::optional<std::vector<std::string>> names_with(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with(prefix) && !name.ends_with(".tmp")) names.push_back(std::move(name));
  }
  if (error) return std::nullopt;
  return names;
}

}  // namespace mica
