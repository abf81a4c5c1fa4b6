// SPDX-License-Identifier: Apache-2.0
#include "mica/io/path_check.hpp"

#include <filesystem>

#include "mica/core/error.hpp"

namespace mica::io {
namespace {

namespace fs = std::filesystem;

std::string why_no(fs::file_type wanted, std::string_view name, const std::string& path) {
  std::error_code error;
  const fs::file_type found = fs::status(path, error).type();
  if (found == wanted) return "";
  switch (found) {
    case fs::file_type::not_found:
      return "no such " + std::string(name);
    case fs::file_type::none:
      return error.message();
    case fs::file_type::regular:
      return "is a file";
    case fs::file_type::directory:
      return "is a folder";
    default:
      return "is a device or pipe";
  }
}

}  // namespace

std::string why_no_file(const std::string& path) { return why_no(fs::file_type::regular, "file", path); }
std::string why_no_folder(const std::string& path) { return why_no(fs::file_type::directory, "folder", path); }

bool is_bare_name(const std::string& name) {
  return !name.empty() && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && name != "." && name != "..";
}

bool lead_to_one_place(const std::string& a, const std::string& b) {
  std::error_code error;
  const bool is_one = fs::equivalent(a, b, error);
  require<IoError>(!error || error == std::errc::no_such_file_or_directory, "cannot find out whether {} is {}: {}", a, b, error.message());
  return is_one;
}

}  // namespace mica::io
