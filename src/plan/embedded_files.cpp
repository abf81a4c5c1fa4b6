// SPDX-License-Identifier: Apache-2.0
#include "embedded_files.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"

namespace mica::plan {

std::vector<std::string> names_of(std::span<const EmbeddedFile> files) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files) names.emplace_back(file.name);
  return names;
}

std::string_view text_of(std::span<const EmbeddedFile> files, std::string_view name) {
  const auto found = std::ranges::find(files, name, &EmbeddedFile::name);
  return found == files.end() ? std::string_view() : found->text;
}

std::string read_embedded_or_file(std::span<const EmbeddedFile> files, const std::string& name_or_file, std::string_view option,
                                  std::string_view hint) {
  if (const std::string_view embedded = text_of(files, name_or_file); !embedded.empty()) return std::string(embedded);
  std::error_code none;
  require<ConfigError>(std::filesystem::is_regular_file(name_or_file, none), "{}={} is neither a file nor one of {}{}", option,
                       name_or_file, fmt::join(names_of(files), ", "), hint);
  std::ifstream file(name_or_file);
  std::ostringstream text;
  text << file.rdbuf();
  require<ConfigError>(file.good(), "cannot read {}", name_or_file);
  return text.str();
}

}  // namespace mica::plan
