// SPDX-License-Identifier: Apache-2.0
#include "ini.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "mica/core/error.hpp"
#include "mica/io/quoted_name.hpp"

namespace mica::train {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kWhite = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

/// Where the quotes that open at `begin` close; npos if they do not.
std::size_t closing_quote(std::string_view text, std::size_t begin) {
  for (std::size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '"') return i;
    if (text[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

std::string_view without_comment(std::string_view line) {
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      i = closing_quote(line, i);
      if (i == std::string_view::npos) return line;
    } else if (line[i] == '#' && (i == 0 || kWhite.find(line[i - 1]) != std::string_view::npos)) {
      return line.substr(0, i);
    }
  }
  return line;
}

}  // namespace

std::vector<IniEntry> parse_ini(const ConfigText& text) {
  std::vector<IniEntry> entries;
  std::map<std::string, std::size_t> lines;
  std::string section;
  std::istringstream stream(text.text.starts_with(kByteOrderMark) ? text.text.substr(kByteOrderMark.size()) : text.text);
  std::string raw;
  for (std::size_t number = 1; std::getline(stream, raw); ++number) {
    const std::string_view line = trimmed(without_comment(raw));
    if (line.empty()) continue;
    if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
      section = std::string(trimmed(line.substr(1, line.size() - 2))) + ".";
      continue;
    }
    const std::size_t equals = line.find('=');
    const bool is_text = std::ranges::none_of(line.substr(0, equals), [](unsigned char c) { return c < ' ' && c != '\t'; });
    require<ConfigError>(is_text && equals != std::string_view::npos && equals > 0 && line.front() != '[',
                         "{}:{}: the line {} is not understood; expected lines like 'key = value' under [section] headings", text.file_name,
                         number, io::quoted_name(line));
    const std::string key = section + std::string(trimmed(line.substr(0, equals)));
    const auto [first, is_new] = lines.emplace(key, number);
    require<ConfigError>(is_new, "{}:{}: {} is set a second time, after line {}: delete one of the two lines", text.file_name, number,
                         io::quoted_name(key), first->second);
    entries.push_back({key, std::string(trimmed(line.substr(equals + 1))), number});
  }
  return entries;
}

std::string quoted(const std::string& value, std::string_view special) {
  const bool is_plain =
      value == trimmed(value) && value.find_first_of("#\"") == std::string::npos && value.find_first_of(special) == std::string::npos;
  if (is_plain) return value;
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::optional<std::string> unquoted(std::string_view text) {
  if (!text.starts_with('"')) return std::string(text);
  if (closing_quote(text, 0) != text.size() - 1) return std::nullopt;
  std::string value;
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    value += text[i];
  }
  return value;
}

std::optional<std::vector<std::string>> split_list(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
    const std::size_t close = text.starts_with('"') ? closing_quote(text, 0) : 0;
    if (close == std::string_view::npos) return std::nullopt;
    const std::size_t comma = std::min(text.find(',', close), text.size());
    const std::optional<std::string> item = unquoted(trimmed(text.substr(0, comma)));
    if (!item) return std::nullopt;
    if (!item->empty()) items.push_back(*item);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return items;
}

}  // namespace mica::train
