// SPDX-License-Identifier: Apache-2.0
#include "characters.hpp"

#include <algorithm>

#include "unicode_classes.hpp"

namespace mica::data {
namespace {

constexpr std::uint32_t kSpaces[] = {0x9,    0xa,    0xb,    0xc,    0xd,    0x20,   0x85,   0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003,
                                     0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};

/// The length of the valid UTF-8 sequence that starts at `i`, and its code point; length 1 if it is not valid.
Character decode(std::string_view text, std::size_t i) {
  const Character invalid{0, 1, CharacterClass::other};
  const auto byte = [&](std::size_t k) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i + k])); };
  const std::uint32_t lead = byte(0);
  const std::size_t n = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (n == 0 || n > text.size() - i) return invalid;
  if (n == 1) return {lead, 1, CharacterClass::other};
  std::uint32_t code = lead & (0x7fU >> n);
  for (std::size_t k = 1; k < n; ++k) {
    if ((byte(k) & 0xc0U) != 0x80U) return invalid;
    code = code << 6 | (byte(k) & 0x3fU);
  }
  const bool is_overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (is_overlong || is_surrogate || code > 0x10ffff) return invalid;
  return {code, static_cast<std::uint8_t>(n), CharacterClass::other};
}

}  // namespace

Characters::Characters() {
  const std::uint32_t last = std::max(letter_ranges().back().last, number_ranges().back().last);
  kinds_.assign(last + 1, CharacterClass::other);
  const auto fill = [&](std::span<const CodeRange> ranges, CharacterClass kind) {
    for (const CodeRange& range : ranges) std::fill(kinds_.begin() + range.first, kinds_.begin() + range.last + 1, kind);
  };
  fill(letter_ranges(), CharacterClass::letter);
  fill(number_ranges(), CharacterClass::number);
  for (const std::uint32_t code : kSpaces) kinds_[code] = CharacterClass::space;
}

Character Characters::at_multibyte(std::string_view text, std::size_t i) const {
  Character character = decode(text, i);
  if (character.num_bytes > 1 && character.code < kinds_.size()) character.kind = kinds_[character.code];
  return character;
}

Character Characters::before(std::string_view text, std::size_t i) const {
  for (std::size_t n = 1; n <= 4 && n <= i; ++n) {
    const Character character = at(text.substr(0, i), i - n);
    if (character.num_bytes == n && (n > 1 || static_cast<unsigned char>(text[i - 1]) < 0x80)) return character;
  }
  return {0, 1, CharacterClass::other};
}

}  // namespace mica::data
