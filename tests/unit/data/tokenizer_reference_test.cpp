// SPDX-License-Identifier: Apache-2.0
// Ids equal to those of Hugging Face's tokenizers and of sentencepiece (tests/reference/make_tokenizer_reference.py).

#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/data/tokenizer.hpp"
#include "mica/io/atomic_file.hpp"

#include "byte_level_json.hpp"
#include "support/paths.hpp"

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
