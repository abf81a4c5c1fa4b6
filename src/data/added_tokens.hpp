// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: tokens that are searched for in a text before it is split into words.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "characters.hpp"

namespace mica::data {

struct AddedToken {
  std::string text;  ///< not empty
  std::int32_t id = 0;
  bool takes_spaces_left = false;   ///< the white space before it is part of it ("lstrip")
  bool takes_spaces_right = false;  ///< and that after it ("rstrip")
  bool is_normalized = false;       ///< searched for only between tokens that are not
  bool is_special = false;
};

/// Finds tokens from left to right, the longest at each position.
class AddedTokens {
 public:
  AddedTokens(std::vector<AddedToken> tokens, const Characters& characters);

  /// Calls visit(plain, id) for the parts of `text` in order: either a token's id, or the text between two tokens.
  /// As in the tokenizers package, tokens are searched for before white space is given to those that take it. So a token that is white
  /// space may be found in what the one before it has taken: it counts all the same, unless it takes the white space on its left, of which
  /// then nothing is left.
  template <class Visit>
  void split(std::string_view text, const Visit& visit) const {
    std::size_t done = 0;
    for (std::size_t i = find(text, 0); i < text.size();) {
      const AddedToken& token = *match(text, i);
      const std::size_t end = i + token.text.size();
      const std::size_t begin = token.takes_spaces_left ? std::max(done, spaces_before(text, i)) : i;
      const std::size_t behind = token.takes_spaces_right ? spaces_after(text, end) : end;
      if (begin < behind) {
        if (done < begin) visit(text.substr(done, begin - done), std::optional<std::int32_t>());
        visit(std::string_view(), std::optional(token.id));
        done = behind;
      }
      i = find(text, end);
    }
    if (done < text.size()) visit(text.substr(done), std::optional<std::int32_t>());
  }

  /// Whether a token that starts before byte `i` ends at `i` or later.
  [[nodiscard]] bool reaches(std::string_view text, std::size_t i) const;
  /// In bytes; 0 without tokens.
  [[nodiscard]] std::size_t longest() const { return longest_; }

 private:
  /// Where the next token starts; text.size() if none follows.
  [[nodiscard]] std::size_t find(std::string_view text, std::size_t begin) const;
  /// The longest token at `i`, or null.
  [[nodiscard]] const AddedToken* match(std::string_view text, std::size_t i) const;
  [[nodiscard]] std::size_t spaces_before(std::string_view text, std::size_t i) const;
  [[nodiscard]] std::size_t spaces_after(std::string_view text, std::size_t i) const;

  const Characters& characters_;
  std::vector<AddedToken> tokens_;          ///< by first byte, the longest first
  std::array<std::uint32_t, 257> first_{};  ///< tokens that start with byte b: [first_[b], first_[b + 1])
  std::size_t longest_ = 0;
  std::optional<char> only_first_byte_;
};

}  // namespace mica::data
