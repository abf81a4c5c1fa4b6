// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"

namespace mica::generate {

/// Decodes tokens one by one into whole UTF-8 characters: an incomplete character is held back until its rest comes. Invalid bytes, and ids
/// without text in the vocabulary, become U+FFFD. The text equals that of all tokens decoded together, which with SentencePiece differs
/// from decoding each token alone.
class TextStream {
 public:
  /// @param before  tokens that the new ones follow; their text is not returned, but a character that they begin is, as a whole.
  /// @param tokenizer  outlives it
  TextStream(const data::Tokenizer& tokenizer, std::span<const std::int32_t> before);

  /// The text that is complete now; may be empty.
  [[nodiscard]] std::string push(std::int32_t id);
  /// At the end: what was held back.
  [[nodiscard]] std::string finish();

 private:
  [[nodiscard]] bool is_known(std::int32_t id) const;
  void forget_old_tokens();

  const data::Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;  ///< the last tokens
  std::size_t taken_ = 0;          ///< bytes of their text already returned
};

/// Length of `text` without an incomplete character at its end.
[[nodiscard]] std::size_t whole_characters(std::string_view text);
/// Replaces each maximal invalid part by one U+FFFD, as Unicode recommends.
[[nodiscard]] std::string valid_utf8(std::string_view text);

}  // namespace mica::generate
