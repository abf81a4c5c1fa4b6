// SPDX-License-Identifier: Apache-2.0
// Ids equal to those of Hugging Face's tokenizers and of sentencepiece (tests/reference/make_tokenizer_reference.py).

#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/data/tokenizer.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"

#include "byte_level_json.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using mica::test::from_hex;

const std::string kFolder = test::reference_path("tokenizers/");

using Ids = std::vector<std::int32_t>;

Ids ids_in(const std::string& text) {
  std::istringstream stream(text);
  Ids ids;
  for (std::int32_t id = 0; stream >> id;) ids.push_back(id);
  return ids;
}

struct Case {
  std::string text;
  Ids ids;
  std::string decoded;  ///< what the package makes of the ids
};

struct Reference {
  std::unique_ptr<Tokenizer> tokenizer;
  std::int64_t vocab_size = 0;
  Ids ids_of_text;  ///< of "text" with what stands around a document
  std::vector<Case> cases;
};

Reference read_reference(const std::string& file) {
  const auto all = nlohmann::json::parse(io::read_file(kFolder + "ids.json"));
  const auto& json = all["files"][file];
  Reference reference{make_tokenizer(kFolder + file), json["vocab_size"].get<std::int64_t>(), ids_in(json.value("text", "")), {}};
  for (const auto& item : json["cases"]) {
    const std::string text = from_hex(item["text"].get<std::string>());
    const std::string decoded = item.contains("bytes") ? from_hex(item["bytes"].get<std::string>()) : text;
    reference.cases.push_back({text, ids_in(item["ids"].get<std::string>()), decoded});
  }
  return reference;
}

Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// The document in parts: text arrives `step` bytes at a time, and each time what is sure is encoded.
Ids encode_in_parts(const Tokenizer& tokenizer, std::string_view text, std::size_t step) {
  Ids ids;
  DocumentPart part{true, false};
  std::size_t begin = 0;
  for (std::size_t end = 0; !part.is_last;) {
    end = std::min(end + step, text.size());
    part.is_last = end == text.size();
    const std::size_t encoded = tokenizer.encode_part(text.substr(begin, end - begin), part, ids);
    begin += encoded;
    part.is_first = part.is_first && encoded == 0;
  }
  EXPECT_EQ(begin, text.size());
  return ids;
}

class TokenizerReference : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerReference, GivesTheIdsOfThePackage) {
  const Reference reference = read_reference(GetParam());
  EXPECT_EQ(reference.tokenizer->vocab_size(), reference.vocab_size);
  ASSERT_GE(reference.cases.size(), 130U);
  for (const Case& each : reference.cases) EXPECT_EQ(ids_of(*reference.tokenizer, each.text), each.ids) << each.text;
  // Again, now that words are in the cache.
  for (const Case& each : reference.cases) EXPECT_EQ(ids_of(*reference.tokenizer, each.text), each.ids) << each.text;
}

TEST_P(TokenizerReference, PartsGiveTheIdsOfTheWhole) {
  const Reference reference = read_reference(GetParam());
  std::string all;
  for (const Case& each : reference.cases) all += each.text + " and so on,\n";
  while (all.size() < 50'000) all += all;
  const Ids whole = ids_of(*reference.tokenizer, all);
  for (const std::size_t step : {1009U, 4096U, 30'011U}) {
    EXPECT_TRUE(encode_in_parts(*reference.tokenizer, all, step) == whole) << step;
  }
  for (const Case& each : reference.cases) {
    for (const std::size_t step : {1U, 2U, 7U}) {
      EXPECT_EQ(encode_in_parts(*reference.tokenizer, each.text, step), each.ids) << each.text << " by " << step;
    }
  }
}

TEST_P(TokenizerReference, DecodesToTheText) {
  const Reference reference = read_reference(GetParam());
  const bool adds_space = std::string(GetParam()).starts_with("gpt2_prefix");
  for (const Case& each : reference.cases) {
    const std::string decoded = reference.tokenizer->decode(each.ids);
    if (!adds_space) {
      EXPECT_EQ(decoded, each.decoded);
    } else if (each.text.find("<mask>") == std::string::npos && each.text.find("<b>") == std::string::npos &&
               each.text.find("<tool>") == std::string::npos && each.text.find("<|") == std::string::npos) {
      EXPECT_EQ(decoded, (each.text.empty() || each.text[0] == ' ' ? "" : " ") + each.text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerReference,
                         ::testing::Values("gpt2.tokenizer.json", "gpt2_prefix.tokenizer.json", "llama3.tokenizer.json", "llama_bpe.model",
                                           "unigram.model"),
                         [](const auto& info) {
                           std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

// Without cuts a text is one sentence to SentencePiece, which takes some 200 bytes of memory for each of its bytes.
TEST(TokenizerReferenceLines, TextWithoutSpacesIsCutAtLineEnds) {
  struct Text {
    std::string model;
    std::string text;
    std::int64_t num_ids;  // of sentencepiece 0.2.3, and the checksum of these ids
    std::uint32_t checksum;
  };
  std::string words;
  for (int i = 0; i < 3000; ++i) words += fmt::format("word{}\n", i * 7919 % 1000);
  std::string chinese;  // lines of up to 41 characters
  for (int i = 0; i < 1000; ++i) {
    const int character = 0x4e00 + i * 31 % 500;
    chinese += fmt::format("\xe6\xb5\xb7\xe4{}{}", static_cast<char>(0x80 | (character >> 6 & 0x3f)),
                           static_cast<char>(0x80 | (character & 0x3f)));
    for (int n = 0; n < i % 40; ++n) chinese += "\xe6\xb0\xb4";
    chinese += '\n';
  }
  for (const Text& each : {Text{"llama_bpe.model", words, 17669, 0x2ca979c8}, Text{"llama_bpe.model", chinese, 65501, 0x289b6b3a},
                           Text{"unigram.model", words, 16708, 0x2f4cb7d6}}) {
    const auto tokenizer = make_tokenizer(kFolder + each.model);
    Ids ids;
    const std::size_t encoded = tokenizer->encode_part(each.text, {true, false}, ids);
    EXPECT_GE(encoded + 1200, each.text.size()) << "the rest is what may go on";
    (void)tokenizer->encode_part(each.text.substr(encoded), {false, true}, ids);
    EXPECT_EQ(std::ssize(ids), each.num_ids);
    EXPECT_EQ(io::crc32c(ids.data(), 4 * std::ssize(ids)), each.checksum) << each.model;
  }
}

TEST(TokenizerReferenceLines, ATextThatCannotBeCutIsRefusedBeforeItTakesTheMemory) {
  const auto tokenizer = make_tokenizer(kFolder + "llama_bpe.model");
  const std::string text((64 << 20) + 1, 'x');
  for (const bool is_last : {false, true}) {
    Ids ids;
    EXPECT_THAT(test::error_of<ConfigError>([&] {
                  (void)tokenizer->encode_part(text, {true, is_last}, ids);
                }),
                ::testing::AllOf(::testing::HasSubstr("llama_bpe.model: 67108865 bytes of text without a space or line end"),
                                 ::testing::HasSubstr("split the text")));
  }
}

TEST(TokenizerReferenceEnds, AreThoseOfThePostProcessor) {
  for (const char* file : {"gpt2.tokenizer.json", "gpt2_prefix.tokenizer.json", "llama3.tokenizer.json"}) {
    const Reference reference = read_reference(file);
    const auto start = reference.tokenizer->start_of_document();
    const auto end = reference.tokenizer->end_of_document();
    Ids ids;
    if (start) ids.push_back(*start);
    reference.tokenizer->encode("text", ids);
    ASSERT_TRUE(end) << file;
    // Without an end in the post_processor, <|endoftext|> is one all the same.
    if (reference.ids_of_text.back() == *end) {
      ids.push_back(*end);
    } else {
      EXPECT_EQ(reference.tokenizer->decode(std::vector{*end}), "<|endoftext|>");
    }
    EXPECT_EQ(ids, reference.ids_of_text) << file;
  }
  const Reference llama3 = read_reference("llama3.tokenizer.json");
  EXPECT_EQ(llama3.tokenizer->start_of_document(), 3000);
  EXPECT_EQ(llama3.tokenizer->end_of_document(), 3001);
  const Reference prefix = read_reference("gpt2_prefix.tokenizer.json");
  EXPECT_EQ(prefix.tokenizer->start_of_document(), 0);
  EXPECT_EQ(prefix.tokenizer->end_of_document(), 1);
  EXPECT_EQ(read_reference("llama_bpe.model").tokenizer->end_of_document(), 2);
}

}  // namespace
}  // namespace mica::data
