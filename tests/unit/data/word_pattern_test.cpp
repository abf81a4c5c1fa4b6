// SPDX-License-Identifier: Apache-2.0
// Where the patterns cut text into words, beside the regular expression engine of Hugging Face's tokenizers.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/data/tokenizer_json.hpp"
#include "mica/io/atomic_file.hpp"

#include "byte_level_json.hpp"
#include "support/paths.hpp"

namespace mica::data {
namespace {

using namespace mica::test;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

/// The lengths of the words of `text`: with ignore_merges and every part of it in the vocabulary, each word is one
/// token.
std::vector<std::size_t> word_lengths(const char* pattern, const std::string& text) {
  Json json = byte_level_json();
  if (pattern == std::string("llama3")) json["pre_tokenizer"] = llama3_pre_tokenizer();
  json["model"]["ignore_merges"] = true;
  int next = 256;
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (std::size_t n = 2; begin + n <= text.size(); ++n) {
      const std::string token = in_byte_alphabet(text.substr(begin, n));
      if (!json["model"]["vocab"].contains(token)) json["model"]["vocab"][token] = next++;
    }
  }
  const auto tokenizer = parse_tokenizer_json(json.dump(), "p");
  Ids ids;
  tokenizer->encode(text, ids);
  std::vector<std::size_t> lengths;
  for (const std::int32_t id : ids) lengths.push_back(tokenizer->decode({&id, 1}).size());
  return lengths;
}

TEST(WordPattern, CutsTextWhereTheRegularExpressionDoes) {
  const auto reference = Json::parse(io::read_file(test::reference_path("tokenizers/words.json")));
  for (const char* pattern : {"gpt2", "llama3"}) {
    ASSERT_GE(reference[pattern].size(), 200U);
    for (const Json& item : reference[pattern]) {
      const std::string text = from_hex(item[0].get<std::string>());
      std::vector<std::size_t> expected;
      for (std::size_t i = 1; i < item.size(); ++i) expected.push_back(item[i].get<std::size_t>());
      EXPECT_EQ(word_lengths(pattern, text), expected) << pattern << ": " << text;
    }
  }
}

std::string utf8_of(std::uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80U | (code >> shift & 0x3fU)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0U | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0U | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0U | code >> 18), tail(12), tail(6), tail(0)};
}

/// A merge over a word's boundary cannot happen: whether "a", "1" or "!" merges with the byte beside it tells the
/// class.
TEST(WordPattern, KnowsLettersNumbersAndSpacesOfUnicode16) {
  Json json = byte_level_json();
  int next = 256;
  for (const std::string first : {"a", "1", "!"}) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string second = in_byte_alphabet({static_cast<char>(byte)});
      json["model"]["vocab"][first + second] = next++;
      json["model"]["merges"].push_back(Json::array({first, second}));
    }
  }
  const auto tokenizer = parse_tokenizer_json(json.dump(), "p");
  const auto is_joined = [&](const std::string& first, const std::string& c) {
    Ids ids;
    tokenizer->encode(first + c, ids);
    return ids.size() == c.size();
  };
  std::uint64_t checksum = 0xcbf29ce484222325U;
  for (std::uint32_t code = 0; code < 0x40000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string c = utf8_of(code);
    const char kind = is_joined("a", c) ? 'L' : is_joined("1", c) ? 'N' : is_joined("!", c) ? 'O' : 'S';
    checksum = (checksum ^ static_cast<unsigned char>(kind)) * 0x100000001b3U;
  }
  const auto reference = Json::parse(io::read_file(test::reference_path("tokenizers/words.json")));
  EXPECT_EQ(fmt::format("{:016x}", checksum), reference["classes"].get<std::string>());
}

}  // namespace
}  // namespace mica::data
