// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "mica/data/tokenizer.hpp"

namespace mica::data {

/// Hugging Face's tokenizer.json with byte-level BPE, with GPT-2's or Llama 3's way of splitting text into words.
///
/// [Note: what is read of a tokenizer.json]
/// - model BPE: vocab, merges ("a b" or ["a", "b"]), ignore_merges. All 256 bytes must have a token, so nothing is ever
///   unknown and unk_token, fuse_unk and byte_fallback have no effect. No dropout, no prefix or suffix of subwords.
/// - pre_tokenizer: ByteLevel (GPT-2's pattern, add_prefix_space, use_regex), or a Sequence of one Split by GPT-2's or
///   Llama 3's pattern (Isolated) and a ByteLevel without pattern. Other patterns are refused, since a pattern decides
///   ids.
/// - added_tokens are found in the text, special or not, as the tokenizers package does.
/// - post_processor: the special tokens that it puts around a text become start_of_document() and end_of_document(). If
///   none ends it, a special token named <|endoftext|>, <|end_of_text|> or </s> does.
/// - normalizer, truncation and padding must be null.
/// Settings that would give other ids than the tokenizers package are refused by name; nothing that matters is ignored.
///
/// Letters and numbers are those of Unicode 16.0. A byte that is not valid UTF-8 counts as a character that is not a letter,
/// number or space, and its tokens decode to the same byte.
///
/// @param text  the file's content; nothing in it is trusted.   @param path  for error texts; its last part is the name.
/// @throws ConfigError
[[nodiscard]] std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& path);

}  // namespace mica::data
