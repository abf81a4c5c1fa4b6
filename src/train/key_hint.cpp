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

/// "train.steps" -> "train_steps"
std::string in_one_word(std::string_view name) {
  std::string word(name);
  std::ranges::replace(word, '.', '_');
  return word;
}

template <class Matches>
const ConfigKey* only_key(const Matches& matches) {
  const ConfigKey* only = nullptr;
  for (const ConfigKey& key : config_keys()) {
    if (!matches(key)) continue;
    if (only != nullptr) return nullptr;
    only = &key;
  }
  return only;
}

/// The key of this name in any section; null if there is none, or if the word alone could as well mean others: "interval".
const ConfigKey* key_named(std::string_view word) {
  const std::string ending = fmt::format("_{}", word);
  if (std::ranges::count_if(config_keys(), [&](const ConfigKey& key) { return key.name.ends_with(ending); }) > 1) return nullptr;
  return only_key([&](const ConfigKey& key) { return without_section(key.name) == word; });
}

/// The key with the fewest changed letters; null if those are many, or another key has as few.
const ConfigKey* nearest_key(std::string_view name) {
  const bool has_section = name.find('.') != std::string_view::npos;
  const auto distance = [&](const ConfigKey& key) {
    if (has_section) return edit_distance(key.name, name);
    return std::min(edit_distance(without_section(key.name), name), edit_distance(in_one_word(key.name), name));
  };
  const std::size_t limit = (without_section(name).size() + 1) / 3;
  const std::size_t least = distance(*std::ranges::min_element(config_keys(), {}, distance));
  if (least == 0 || least > limit) return nullptr;
  return only_key([&](const ConfigKey& key) { return distance(key) == least; });
}

const ConfigKey* likely_key(std::string_view name) {
  const std::string word = in_one_word(name);
  if (const ConfigKey* key = only_key([&](const ConfigKey& each) { return in_one_word(each.name) == word; })) return key;  // "train_steps"
  if (const ConfigKey* key = key_named(word)) return key;                                                                  // "log.interval"
  if (const ConfigKey* key = key_named(without_section(name))) return key;                                                 // "train.lr"
  return nearest_key(name);
}

const OtherNames* row_of(std::string_view word) {
  const auto found = std::ranges::find_if(other_names(), [&](const OtherNames& names) {
    const std::vector<std::string_view> words = words_of(names);
    return std::ranges::find(words, word) != words.end();
  });
  return found == other_names().end() ? nullptr : &*found;
}

}  // namespace

std::string hint_for_key(std::string_view name) {
  std::string plain(name);
  std::ranges::transform(plain, plain.begin(), [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::tolower(c)); });
  const OtherNames* row = row_of(without_section(plain));
  if (row == nullptr) row = row_of(in_one_word(plain));
  if (row == nullptr) {
    const ConfigKey* key = likely_key(plain);
    return key == nullptr ? "" : fmt::format("did you mean {}?", key->name);
  }
  if (row->key.empty()) return std::string(row->note);
  return fmt::format("did you mean {}?{}{}", row->key, row->note.empty() ? "" : " ", row->note);
}

}  // namespace mica::train
