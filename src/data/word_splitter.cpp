// SPDX-License-Identifier: Apache-2.0
#include "word_splitter.hpp"

#include <algorithm>

namespace mica::data {
namespace {

bool is_line_break(char c) { return c == '\r' || c == '\n'; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// The bytes of 's 't 're 've 'm 'll or 'd at `begin`, which is an apostrophe; 0 if it is none of them.
std::size_t contraction_bytes(std::string_view text, std::size_t begin, bool ignores_case) {
  const auto at = [&](std::size_t k) {
    const char c = begin + k < text.size() ? text[begin + k] : '\0';
    return ignores_case ? lower(c) : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    case '\xc5':
      return ignores_case && at(2) == '\xbf' ? 3 : 0;  // the long s (U+017F) is an s in another case
    default:
      return 0;
  }
}

}  // namespace

std::optional<WordPattern> word_pattern_of(std::string_view regex) {
  if (regex == kGpt2Regex) return WordPattern::gpt2;
  if (regex == kLlama3Regex) return WordPattern::llama3;
  return std::nullopt;
}

std::size_t WordSplitter::end_of_word(std::string_view text, std::size_t begin) const {
  switch (pattern_) {
    case WordPattern::gpt2:
      return end_of_gpt2_word(text, begin);
    case WordPattern::llama3:
      return end_of_llama3_word(text, begin);
    case WordPattern::none:
      break;
  }
  return text.size();
}

std::size_t WordSplitter::end_of_gpt2_word(std::string_view text, std::size_t begin) const {
  if (text[begin] == '\'') {
    if (const std::size_t bytes = contraction_bytes(text, begin, false); bytes > 0) return begin + bytes;
  }
  //  ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+
  const std::size_t start = begin + (text[begin] == ' ' ? 1 : 0);
  if (start < text.size()) {
    const CharacterClass kind = characters_.kind_at(text, start);
    if (kind != CharacterClass::space) return end_of_run(text, start, kind);
  }
  return end_of_spaces(text, begin);
}

std::size_t WordSplitter::end_of_llama3_word(std::string_view text, std::size_t begin) const {
  if (text[begin] == '\'') {
    if (const std::size_t bytes = contraction_bytes(text, begin, true); bytes > 0) return begin + bytes;
  }
  const Character first = characters_.at(text, begin);
  if (first.kind == CharacterClass::letter) return end_of_run(text, begin, first.kind);
  if (first.kind == CharacterClass::number) {  // \p{N}{1,3}
    std::size_t end = begin + first.num_bytes;
    for (int count = 1; count < 3 && end < text.size(); ++count) {
      const Character next = characters_.at(text, end);
      if (next.kind != CharacterClass::number) break;
      end += next.num_bytes;
    }
    return end;
  }
  const std::size_t second = begin + first.num_bytes;
  if (!is_line_break(text[begin]) && second < text.size() &&
      characters_.kind_at(text, second) == CharacterClass::letter) {  // [^\r\n\p{L}\p{N}]?\p{L}+
    return end_of_run(text, second, CharacterClass::letter);
  }
  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  const std::size_t start = begin + (text[begin] == ' ' ? 1 : 0);
  if (start < text.size() && characters_.kind_at(text, start) == CharacterClass::other) {
    std::size_t end = end_of_run(text, start, CharacterClass::other);
    while (end < text.size() && is_line_break(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+ : up to the last line break among the spaces
  const std::size_t end = end_of_run(text, begin, CharacterClass::space);
  for (std::size_t i = end; i > begin; --i) {
    if (is_line_break(text[i - 1])) return i;
  }
  return end_of_spaces(text, begin);
}

/// At least one character, whatever its kind.
std::size_t WordSplitter::end_of_run(std::string_view text, std::size_t begin, CharacterClass kind) const {
  std::size_t end = begin + characters_.at(text, begin).num_bytes;
  while (end < text.size()) {
    const Character next = characters_.at(text, end);
    if (next.kind != kind) break;
    end += next.num_bytes;
  }
  return end;
}

/// \s+(?!\S)|\s+ : before a word, the last of several spaces belongs to the word.
std::size_t WordSplitter::end_of_spaces(std::string_view text, std::size_t begin) const {
  const std::size_t end = end_of_run(text, begin, CharacterClass::space);
  if (end == text.size()) return end;
  const std::size_t last = end - characters_.before(text, end).num_bytes;
  return last > begin ? last : end;
}

std::size_t WordSplitter::sure_boundary(std::string_view text, std::size_t before) const {
  if (pattern_ == WordPattern::none) return 0;
  for (std::size_t i = std::min(before, text.size()); i-- > 1;) {
    const CharacterClass left = characters_.before(text, i).kind;
    if (left != CharacterClass::letter && left != CharacterClass::number) continue;
    if (characters_.kind_at(text, i) != left) return i;
  }
  return 0;
}

}  // namespace mica::data
