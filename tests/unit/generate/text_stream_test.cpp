// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/text_stream.hpp"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/paths.hpp"

namespace mica::generate {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pushed(const data::Tokenizer& tokenizer, const std::vector<std::int32_t>& before,
                                const std::vector<std::int32_t>& ids) {
  TextStream stream(tokenizer, before);
  std::vector<std::string> pieces;
  for (const std::int32_t id : ids) pieces.push_back(stream.push(id));
  pieces.push_back(stream.finish());
  return pieces;
}

std::vector<std::int32_t> bytes_of(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(TextStream, ACharacterComesWhenItIsWhole) {
  const auto bytes = data::make_tokenizer("bytes");
  EXPECT_THAT(pushed(*bytes, {}, bytes_of("aä€")), ElementsAre("a", "", "ä", "", "", "€", ""));
  EXPECT_THAT(pushed(*bytes, bytes_of("xyz"), bytes_of("😀b")), ElementsAre("", "", "", "😀", "b", ""));
  EXPECT_THAT(pushed(*bytes, bytes_of("x\xe2\x82"), bytes_of("\xac")), ElementsAre("€", "")) << "begun by the prompt";
}

TEST(TextStream, BytesThatAreNoCharacterAreReplaced) {
  const auto bytes = data::make_tokenizer("bytes");
  EXPECT_THAT(pushed(*bytes, {},
                     bytes_of("\xff"
                              "a")),
              ElementsAre("\uFFFD", "a", ""));
  EXPECT_THAT(pushed(*bytes, {},
                     bytes_of("\xe2"
                              "a")),
              ElementsAre("", "\uFFFDa", ""));
  EXPECT_THAT(pushed(*bytes, {}, bytes_of("a\xe2\x82")), ElementsAre("a", "", "", "\uFFFD")) << "the end comes inside one";
  EXPECT_THAT(pushed(*bytes, {}, {97, 300, 98}), ElementsAre("a", "\uFFFD", "b", "")) << "an id without text";
}

/// More tokens than are decoded again at a time.
TEST(TextStream, LongTextsAreWhole) {
  const auto bytes = data::make_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 100; ++i) text += "ü€ x";
  const std::vector<std::string> pieces = pushed(*bytes, bytes_of("ö"), bytes_of(text));
  EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), std::string()), text);
}

/// Spaces between words are part of the second one's token, which SentencePiece drops where a text begins.
TEST(TextStream, ATokenizersTextIsThatOfAllTokens) {
  for (const std::string name : {"tokenizers/llama3.tokenizer.json", "tokenizers/unigram.model"}) {
    const auto tokenizer = data::make_tokenizer(test::reference_path(name));
    const std::string text = "The word and the wörd, 東京.";
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    for (std::size_t cut = 0; cut < ids.size(); ++cut) {
      const std::vector<std::int32_t> before(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
      const std::vector<std::string> pieces = pushed(*tokenizer, before, {ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end()});
      const std::string all = std::accumulate(pieces.begin(), pieces.end(), std::string());
      const std::string whole = tokenizer->decode(ids), start = tokenizer->decode(before);
      if (whole_characters(start) == start.size() && !start.ends_with("\uFFFD")) {
        EXPECT_EQ(start + all, whole) << name << " " << cut;
      }
    }
  }
}

/// SentencePiece writes three bytes for each byte of a character that is not whole yet.
TEST(TextStream, TextBehindAPromptThatEndsInsideACharacterIsWhole) {
  const auto tokenizer = data::make_tokenizer(test::reference_path("tokenizers/llama_bpe.model"));
  std::vector<std::int32_t> ids;
  tokenizer->encode("😀hello", ids);
  std::size_t num_cuts = 0;
  for (std::size_t cut = 1; cut < ids.size(); ++cut) {
    const std::vector<std::int32_t> before(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
    if (!tokenizer->decode(before).ends_with("\uFFFD")) continue;
    ++num_cuts;
    const std::vector<std::string> pieces = pushed(*tokenizer, before, {ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end()});
    EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), std::string()), "😀hello") << "behind " << cut << " tokens";
  }
  EXPECT_EQ(num_cuts, 3U);
}

TEST(TextStream, WholeCharactersEndBeforeABeginningOfOne) {
  EXPECT_EQ(whole_characters(""), 0U);
  EXPECT_EQ(whole_characters("ab"), 2U);
  EXPECT_EQ(whole_characters("a€"), 4U);
  EXPECT_EQ(whole_characters("a\xe2\x82"), 1U);
  EXPECT_EQ(whole_characters("a\xf0\x9f\x98"), 1U);
  EXPECT_EQ(whole_characters("a\xf0"), 1U);
  EXPECT_EQ(whole_characters("a\x82"), 2U) << "no character begins with it";
  EXPECT_EQ(whole_characters("\xff"), 1U);
}

/// The longest part that could have been a character is one replacement (Unicode 16, table 3-8).
TEST(TextStream, ReplacementsFollowUnicode) {
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\uFFFD\uFFFD");
  EXPECT_EQ(valid_utf8("\xe0\x80\xbf"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD") << "a surrogate";
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD") << "past the last character";
  EXPECT_EQ(valid_utf8("\xf0\x90\x80"
                       "A"),
            "\uFFFD"
            "A");
  EXPECT_EQ(valid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
                       "A"),
            "\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
}

}  // namespace
}  // namespace mica::generate
