// SPDX-License-Identifier: Apache-2.0
#include "key_hint.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "config_keys.hpp"
#include "config_other_names.hpp"

namespace mica::train {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

/// "optim.lr" -> "lr"
std::string_view without_section(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string nearest_key(std::string_view name) {
  const bool has_section = name.find('.') != std::string_view::npos;
  const auto distance = [&](const ConfigKey& key) {
    const std::string_view compared = has_section ? std::string_view(key.name) : without_section(key.name);
    const bool is_in_another_section = without_section(key.name) == without_section(name);
    return std::pair(!is_in_another_section, edit_distance(compared, name));
  };
  return std::ranges::min_element(config_keys(), {}, distance)->name;
}

}  // namespace

std::string hint_for_key(std::string_view name) {
  std::string plain(name);
  std::ranges::transform(plain, plain.begin(), [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::tolower(c)); });
  const auto known = std::ranges::find_if(other_names(), [word = without_section(plain)](const OtherNames& names) {
    const std::vector<std::string_view> words = words_of(names);
    return std::ranges::find(words, word) != words.end();
  });
  if (known == other_names().end()) return fmt::format("did you mean {}?", nearest_key(plain));
  if (known->key.empty()) return std::string(known->note);
  return fmt::format("did you mean {}?{}{}", known->key, known->note.empty() ? "" : " ", known->note);
}

}  // namespace mica::train
