// SPDX-License-Identifier: Apache-2.0
#pragma once

// The smallest tokenizer.json, to be changed by tests.

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace mica::test {

/// Bytes in the alphabet in which byte-level vocabularies are written.
inline std::string in_byte_alphabet(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<std::uint32_t>(static_cast<unsigned char>(c));
    std::uint32_t code = byte;  // printable ones stand for themselves, the others follow from U+0100 on
    if (byte < 33) code = 0x100 + byte;
    if (byte >= 127 && byte < 161) code = 0x100 + 33 + (byte - 127);
    if (byte == 173) code = 0x100 + 67;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0U | code >> 6);
      text += static_cast<char>(0x80U | (code & 0x3fU));
    }
  }
  return text;
}

/// Every byte is its own id, nothing merges; words by GPT-2's pattern.
inline nlohmann::json byte_level_json() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[in_byte_alphabet({static_cast<char>(byte)})] = byte;
  return {{"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

/// Words by `regex`, or by Llama 3's pattern.
inline nlohmann::json llama3_pre_tokenizer(
    const char* regex =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)") {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace mica::test
