// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/text_stream.hpp"

#include <algorithm>

#include "mica/core/error.hpp"

namespace mica::generate {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
/// How many tokens before a new one may affect its text (SentencePiece drops a space at the beginning of a text), and how many are decoded
/// again at most.
constexpr std::size_t kContextTokens = 8, kMostTokens = 64;

std::uint8_t byte_at(std::string_view text, std::size_t i) { return static_cast<std::uint8_t>(text[i]); }

/// The character at `begin`, or as much of one as is valid.
struct Character {
  std::size_t length = 1;  ///< bytes present
  bool is_whole = false;
  bool may_go_on = false;  ///< the text ends inside it
};

Character character_at(std::string_view text, std::size_t begin) {
  const std::uint8_t first = byte_at(text, begin);
  if (first < 0x80) return {1, true, false};
  const std::size_t wanted = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  if (wanted == 0) return {};
  // The range of the second byte excludes overlong forms, surrogates, and code points above U+10FFFF.
  const std::uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const std::uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  std::size_t length = 1;
  for (; length < wanted; ++length) {
    if (begin + length == text.size()) return {length, false, true};
    const std::uint8_t next = byte_at(text, begin + length);
    if (next < (length == 1 ? low : 0x80) || next > (length == 1 ? high : 0xbf)) return {length, false, false};
  }
  return {length, true, false};
}

/// The end of what will stay as it is, at least `begin`: SentencePiece writes up to three replacement characters until all bytes of a
/// character have come.
std::size_t end_of_settled(std::string_view text, std::size_t begin) {
  std::size_t end = whole_characters(text);
  for (int i = 0; i < 3 && end >= begin + kReplacement.size() && text.substr(0, end).ends_with(kReplacement); ++i) {
    end -= kReplacement.size();
  }
  return end;
}

}  // namespace

std::size_t whole_characters(std::string_view text) {
  // No character has more than 4 bytes.
  for (std::size_t begin = text.size() - std::min<std::size_t>(text.size(), 3); begin < text.size(); ++begin) {
    if ((byte_at(text, begin) & 0xc0) != 0xc0) continue;
    if (character_at(text, begin).may_go_on) return begin;
  }
  return text.size();
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  for (std::size_t i = 0; i < text.size();) {
    const Character character = character_at(text, i);
    valid += character.is_whole ? text.substr(i, character.length) : kReplacement;
    i += character.length;
  }
  return valid;
}

TextStream::TextStream(const data::Tokenizer& tokenizer, std::span<const std::int32_t> before) : tokenizer_(tokenizer) {
  for (const std::int32_t id : before.last(std::min(before.size(), kContextTokens))) {
    if (is_known(id)) ids_.push_back(id);
  }
  taken_ = end_of_settled(tokenizer_.decode(ids_), 0);
}

bool TextStream::is_known(std::int32_t id) const {
  try {
    (void)tokenizer_.decode({&id, 1});
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

std::string TextStream::push(std::int32_t id) {
  if (!is_known(id)) return finish() + std::string(kReplacement);
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  const std::size_t end = end_of_settled(text, taken_);
  if (end <= taken_) return "";
  std::string piece = valid_utf8(std::string_view(text).substr(taken_, end - taken_));
  taken_ = end;
  if (end == text.size()) forget_old_tokens();
  return piece;
}

std::string TextStream::finish() {
  const std::string text = tokenizer_.decode(ids_);
  std::string rest = valid_utf8(std::string_view(text).substr(std::min(taken_, text.size())));
  taken_ = text.size();
  return rest;
}

void TextStream::forget_old_tokens() {
  if (ids_.size() < kMostTokens) return;
  ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(kContextTokens));
  taken_ = tokenizer_.decode(ids_).size();
}

}  // namespace mica::generate
