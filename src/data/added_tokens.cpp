// SPDX-License-Identifier: Apache-2.0
#include "added_tokens.hpp"

#include <algorithm>

namespace mica::data {
namespace {

std::size_t byte_of(char c) { return static_cast<unsigned char>(c); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Characters& characters)
    : characters_(characters), tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.text[0] != b.text[0] ? byte_of(a.text[0]) < byte_of(b.text[0]) : a.text.size() > b.text.size();
  });
  for (const AddedToken& token : tokens_) {
    ++first_[byte_of(token.text[0]) + 1];
    longest_ = std::max(longest_, token.text.size());
  }
  for (std::size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
  if (!tokens_.empty() && tokens_.front().text[0] == tokens_.back().text[0]) only_first_byte_ = tokens_[0].text[0];
}

std::size_t AddedTokens::find(std::string_view text, std::size_t begin) const {
  if (tokens_.empty()) return text.size();
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (only_first_byte_) i = std::min(text.find(*only_first_byte_, i), text.size());
    if (i < text.size() && match(text, i) != nullptr) return i;
  }
  return text.size();
}

const AddedToken* AddedTokens::match(std::string_view text, std::size_t i) const {
  const std::size_t byte = byte_of(text[i]);
  for (std::uint32_t k = first_[byte]; k < first_[byte + 1]; ++k) {
    if (text.compare(i, tokens_[k].text.size(), tokens_[k].text) == 0) return &tokens_[k];
  }
  return nullptr;
}

bool AddedTokens::reaches(std::string_view text, std::size_t i) const {
  for (const AddedToken& token : tokens_) {
    for (std::size_t n = 1; n <= token.text.size() && n <= i; ++n) {
      if (text.compare(i - n, token.text.size(), token.text) == 0) return true;
    }
  }
  return false;
}

std::size_t AddedTokens::spaces_before(std::string_view text, std::size_t i) const {
  while (i > 0) {
    const Character character = characters_.before(text, i);
    if (character.kind != CharacterClass::space) break;
    i -= character.num_bytes;
  }
  return i;
}

std::size_t AddedTokens::spaces_after(std::string_view text, std::size_t i) const {
  while (i < text.size()) {
    const Character character = characters_.at(text, i);
    if (character.kind != CharacterClass::space) break;
    i += character.num_bytes;
  }
  return i;
}

}  // namespace mica::data
