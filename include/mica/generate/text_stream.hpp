// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"

namespace mica::generate {

/// Text of tokens that come one by one, as whole characters of UTF-8: what may be the beginning of one waits for the rest of it.
/// Bytes that are none, and ids that the vocabulary has no text for, become U+FFFD. The text is that of all tokens together,
/// which with SentencePiece is not that of each alone.
class TextStream {
 public:
  /// @param before  tokens that the new ones follow; their text is not returned.  @param tokenizer  outlives it
  TextStream(const data::Tokenizer& tokenizer, std::span<const std::int32_t> before);

  /// The text that is certain now; may be empty.
  [[nodiscard]] std::string push(std::int32_t id);
  /// What waits, at the end.
  [[nodiscard]] std::string finish();

 private:
  [[nodiscard]] bool is_known(std::int32_t id) const;
  void forget_old_tokens();

  const data::Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;  ///< the last ones
  std::size_t taken_ = 0;          ///< bytes of their text that were returned
};

/// Length of the part of `text` that is certain, whatever bytes follow: without a beginning of a character at the end.
[[nodiscard]] std::size_t whole_characters(std::string_view text);
/// With U+FFFD for each longest part that is no character (as Unicode recommends).
[[nodiscard]] std::string valid_utf8(std::string_view text);

}  // namespace mica::generate
