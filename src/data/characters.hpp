// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: UTF-8 text, one character after the other, with the class of each.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mica::data {

/// letter and number: \p{L} and \p{N}; space: \s (White_Space). A byte that is not part of valid UTF-8 counts as a
/// character of one byte of class other: nothing is lost, and the result does not depend on where a text is cut.
enum class CharacterClass : std::uint8_t { other, letter, number, space };

struct Character {
  std::uint32_t code = 0;  ///< meaningless for a byte that is not valid UTF-8
  std::uint8_t num_bytes = 0;
  CharacterClass kind = CharacterClass::other;
};

class Characters {
 public:
  Characters();

  /// The character that starts at byte `i` < text.size().
  [[nodiscard]] Character at(std::string_view text, std::size_t i) const {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) return {byte, 1, kinds_[byte]};
    return at_multibyte(text, i);
  }
  /// The character that ends before byte `i` > 0.
  [[nodiscard]] Character before(std::string_view text, std::size_t i) const;
  [[nodiscard]] CharacterClass kind_at(std::string_view text, std::size_t i) const { return at(text, i).kind; }

 private:
  [[nodiscard]] Character at_multibyte(std::string_view text, std::size_t i) const;

  std::vector<CharacterClass> kinds_;  ///< by code point; other for all that follow
};

}  // namespace mica::data
