// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/train/config.hpp"

namespace mica::train {

/// One `key = value` of an INI file.
struct IniEntry {
  std::string key;    ///< "train.steps": section and key
  std::string value;  ///< as it stands, in its quotes if it has some
  std::size_t line = 0;
};

/// [Note: config files] Lines are `[section]` or `key = value`. '#' begins a comment where a line begins and after white
/// space, but not inside a word or double quotes: `dir = out#1  # the first`. Values, and the items of lists, may stand in
/// double quotes, where \" and \\ are a quote and a backslash. A byte order mark of UTF-8 and CRLF line ends are read over.
/// @throws ConfigError naming file and line: no such line; a key that is set twice, with both lines.
[[nodiscard]] std::vector<IniEntry> parse_ini(const ConfigText& text);

/// The value in quotes where a config file needs them: around '#', quotes, white space at an end, and any of `special`.
[[nodiscard]] std::string quoted(const std::string& value, std::string_view special = "");

/// The text without its quotes; as it is when it has none. Nothing for quotes that are not closed or closed too early.
[[nodiscard]] std::optional<std::string> unquoted(std::string_view text);

/// Takes the comma-separated items out of a list, without their quotes and without empty ones. Nothing as in unquoted().
[[nodiscard]] std::optional<std::vector<std::string>> split_list(std::string_view text);

}  // namespace mica::train
