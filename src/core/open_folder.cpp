// SPDX-License-Identifier: Apache-2.0
#include "mica/core/open_folder.hpp"

#include <cerrno>

#include <dirent.h>

namespace mica {

int open_folder(const std::string& folder) {
  DIR* opened = ::opendir(folder.c_str());
  if (opened == nullptr) return errno;
  ::closedir(opened);
  return 0;
}

}  // namespace mica
