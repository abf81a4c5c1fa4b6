// SPDX-License-Identifier: Apache-2.0
#include "output_file.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "mica/core/error.hpp"

namespace mica::train::bench {

void require_writable(std::string_view flag, const std::string& path) {
  std::error_code unknown;  // then it is taken to be there, and opening it says what is wrong
  const bool existed = std::filesystem::exists(path, unknown) || unknown;
  require<ConfigError>(std::ofstream(path, std::ios::app).is_open(), "{}={}: cannot write it: {}; give a file in a folder that exists",
                       flag, path, errno_text(errno));
  if (!existed) std::filesystem::remove(path, unknown);  // a program that is stopped leaves no empty file
}

void write_output(std::string_view flag, const std::string& path, std::string_view text) {
  std::ofstream file(path);
  file << text;
  file.close();
  require<IoError>(static_cast<bool>(file), "{}={}: cannot write it: {}", flag, path, errno_text(errno));
}

}  // namespace mica::train::bench
