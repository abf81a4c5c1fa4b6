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
  std::string value;  ///< as written, with its quotes if it has any
  std::size_t line = 0;
};

/// [Note: config files] Lines are `[section]` or `key = value`. '#' begins a comment at the start of a line and after white space, but not
/// inside a word or double quotes: `dir = out#1  # the first`. Values, and the items of lists, may stand in double quotes; inside them, a
/// backslash stands before a quote or a backslash. A UTF-8 byte order mark and CRLF line ends are accepted.
/// @throws ConfigError naming file and line: a line of another form; a key that is set twice, with both lines.
[[nodiscard]] std::vector<IniEntry> parse_ini(const ConfigText& text);

/// The value in quotes where a config file needs them: around '#', quotes, white space at an end, and any of `special`.
[[nodiscard]] std::string quoted(const std::string& value, std::string_view special = "");

/// The text without its quotes, if it has any. Nothing if the quotes are not closed, or closed before the end.
[[nodiscard]] std::optional<std::string> unquoted(std::string_view text);

/// The comma-separated items of a list, without their quotes; empty items are dropped. Nothing for bad quotes, as unquoted().
[[nodiscard]] std::optional<std::vector<std::string>> split_list(std::string_view text);

}  // namespace mica::train
