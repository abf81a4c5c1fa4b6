// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: the patterns by which byte-level tokenizers split text into words before they merge.

#include <cstddef>
#include <optional>
#include <string_view>

#include "characters.hpp"

namespace mica::data {

/// gpt2: what Hugging Face's ByteLevel does; llama3: also GPT-4's; none: the text is one word.
enum class WordPattern { none, gpt2, llama3 };

/// The regular expressions as tokenizer.json spells them.
inline constexpr std::string_view kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The pattern whose spelling is exactly `regex`; nothing for all others.
[[nodiscard]] std::optional<WordPattern> word_pattern_of(std::string_view regex);

/// Matches one pattern without a regular expression engine, with the result of one that takes the first alternative that matches.
class WordSplitter {
 public:
  WordSplitter(WordPattern pattern, const Characters& characters) : pattern_(pattern), characters_(characters) {}

  /// The end of the word that starts at `begin` < text.size().
  [[nodiscard]] std::size_t end_of_word(std::string_view text, std::size_t begin) const;

  /// The last position before `before` at which a word ends regardless of the text further left and right: after a letter or
  /// number that is followed by another kind of character. 0 if there is none.
  [[nodiscard]] std::size_t sure_boundary(std::string_view text, std::size_t before) const;

 private:
  [[nodiscard]] std::size_t end_of_gpt2_word(std::string_view text, std::size_t begin) const;
  [[nodiscard]] std::size_t end_of_llama3_word(std::string_view text, std::size_t begin) const;
  [[nodiscard]] std::size_t end_of_run(std::string_view text, std::size_t begin, CharacterClass kind) const;
  [[nodiscard]] std::size_t end_of_spaces(std::string_view text, std::size_t begin) const;

  WordPattern pattern_;
  const Characters& characters_;
};

}  // namespace mica::data
