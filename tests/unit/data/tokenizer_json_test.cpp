// SPDX-License-Identifier: Apache-2.0
// What is read of a tokenizer.json, and what is refused; ids that are known without any other program.

#include "mica/data/tokenizer_json.hpp"

#include <cstdint>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "mica/core/error.hpp"

#include "byte_level_json.hpp"
#include "data_files.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using namespace mica::test;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

/// Every byte is its own id (0 to 255); then "ab" 256, "abc" 257, " a" 258, with the merges that make them.
Json small_tokenizer() {
  Json json = byte_level_json();
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["vocab"]["abc"] = 257;
  json["model"]["vocab"][in_byte_alphabet(" a")] = 258;
  json["model"]["merges"] = {"a b", "ab c", in_byte_alphabet(" ") + " a"};
  return json;
}

std::unique_ptr<Tokenizer> parse(const Json& json) { return parse_tokenizer_json(json.dump(), "some/tokenizer.json"); }

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

Json added(int id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"special", true}};
}

TEST(TokenizerJson, MergesByRank) {
  const auto tokenizer = parse(small_tokenizer());
  EXPECT_EQ(tokenizer->name(), "tokenizer.json");
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->start_of_document(), std::nullopt);
  EXPECT_EQ(tokenizer->end_of_document(), std::nullopt);
  EXPECT_EQ(encode(*tokenizer, "abcab"), (Ids{257, 256}));
  EXPECT_EQ(encode(*tokenizer, "bc abc a"), (Ids{'b', 'c', ' ', 257, 258}));  // "a b" comes before "_ a"
  EXPECT_EQ(encode(*tokenizer, "x\n"), (Ids{'x', '\n'}));
  EXPECT_EQ(encode(*tokenizer, ""), Ids{});
  EXPECT_EQ(tokenizer->decode(Ids{257, 258, 0, 255}), std::string("abc a\0\xff", 7));
  for (const std::int32_t id : {-1, 259}) EXPECT_THROW((void)tokenizer->decode(Ids{id}), ConfigError);
}

TEST(TokenizerJson, LongWordsMergeLikeShortOnes) {
  const auto tokenizer = parse(small_tokenizer());
  for (const std::size_t n : {10U, 16U, 17U, 100U, 5000U}) {  // 3 bytes each: by array, by queue, past the cache
    std::string text;
    for (std::size_t i = 0; i < n; ++i) text += "abc";
    EXPECT_EQ(encode(*tokenizer, text), Ids(n, 257)) << n;
    EXPECT_EQ(encode(*tokenizer, text + "ab"), [&] {
      Ids ids(n, 257);
      ids.push_back(256);
      return ids;
    }()) << n;
  }
}

TEST(TokenizerJson, ALaterMergeDoesNotTakeWhatAnEarlierOneTook) {
  struct Case {
    Json vocab;
    Json merges;
    std::string text;
    Ids ids;
  };
  // In the second case "a" has grown when its merge with the next "b" comes up, and a "b" stands behind it again.
  const std::vector<Case> cases = {
      {{{"bc", 259}}, {"b c", "a b"}, "abcab", {'a', 259, 256}},
      {{{"bb", 259}, {"abb", 260}}, {"b b", "a bb", "a b"}, "abbb", {260, 'b'}},
  };
  for (const Case& each : cases) {
    Json json = small_tokenizer();
    json["model"]["vocab"].update(each.vocab);
    json["model"]["merges"] = each.merges;
    const auto tokenizer = parse(json);
    for (const std::size_t n : {1U, 10U, 100U}) {
      std::string text;
      Ids expected;
      for (std::size_t i = 0; i < n; ++i) {
        text += each.text;
        expected.insert(expected.end(), each.ids.begin(), each.ids.end());
      }
      EXPECT_EQ(encode(*tokenizer, text), expected) << text;
    }
  }
}

TEST(TokenizerJson, OfEqualMergesTheLastHoldsAndAnOverlapGoesLeft) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["bc"] = 259;
  json["model"]["vocab"]["aa"] = 260;
  json["model"]["merges"] = {"a b", "b c", "a b", "a a"};
  EXPECT_EQ(encode(*parse(json), "abc"), (Ids{'a', 259}));
  EXPECT_EQ(encode(*parse(json), "aaa"), (Ids{260, 'a'}));
}

TEST(TokenizerJson, BothSpellingsOfMergesAndOldFilesAreRead) {
  Json json = small_tokenizer();
  const std::string hash = parse(json)->hash();
  EXPECT_EQ(hash.size(), 16U);
  const auto pair = [](const char* left, const char* right) { return Json::array({left, right}); };
  json["model"]["merges"] = Json::array({pair("a", "b"), pair("ab", "c"), pair("\xc4\xa0", "a")});
  json["model"].erase("type");
  json.erase("normalizer");
  EXPECT_EQ(encode(*parse(json), "abc a"), (Ids{257, 258}));
  EXPECT_EQ(parse(json)->hash(), hash);  // another spelling of the same
  json["model"]["merges"] = {"#version: 0.2", "a b"};
  EXPECT_EQ(encode(*parse(json), "abc"), (Ids{256, 'c'}));
  EXPECT_NE(parse(json)->hash(), hash);
}

TEST(TokenizerJson, IgnoreMergesTakesWholeWordsFromTheVocabulary) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["xyz"] = 259;
  json["model"]["vocab"][std::string(60, 'z')] = 260;
  EXPECT_EQ(encode(*parse(json), "xyz"), (Ids{'x', 'y', 'z'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(*parse(json), "xyz"), Ids{259});
  EXPECT_EQ(encode(*parse(json), "xyzz"), (Ids{'x', 'y', 'z', 'z'}));
  EXPECT_EQ(encode(*parse(json), std::string(60, 'z')), Ids{260});
}

TEST(TokenizerJson, BytesThatAreNoUtf8AreKeptAndCutWords) {
  const auto tokenizer = parse(small_tokenizer());
  // A lone continuation byte, a cut sequence, an overlong one, a surrogate, past the last code point, bytes that no
  // text has.
  for (const std::string bad : {"\x80", "\xe4\xb8", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff\xfe"}) {
    const std::string text = "ab" + bad + "abc" + bad;
    Ids expected{256};
    for (const char c : bad) expected.push_back(static_cast<unsigned char>(c));
    const Ids tail(expected.begin() + 1, expected.end());
    expected.push_back(257);
    expected.insert(expected.end(), tail.begin(), tail.end());
    EXPECT_EQ(encode(*tokenizer, text), expected);
    EXPECT_EQ(tokenizer->decode(expected), text);
  }
}

TEST(TokenizerJson, AddedTokensAreFoundInTheText) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added(259, "<x>"), added(260, "<x>y"), added(261, "<m>"), added(262, "bc")};
  json["added_tokens"][2]["lstrip"] = true;
  json["added_tokens"][2]["rstrip"] = true;
  json["added_tokens"][3]["normalized"] = true;
  const auto tokenizer = parse(json);
  EXPECT_EQ(tokenizer->vocab_size(), 263);
  EXPECT_EQ(encode(*tokenizer, "ab<x>ab"), (Ids{256, 259, 256}));
  EXPECT_EQ(encode(*tokenizer, "<x>y<x<x>"), (Ids{260, '<', 'x', 259}));  // the longest
  EXPECT_EQ(encode(*tokenizer, "x \t<m>\n ab<m>"), (Ids{'x', 261, 256, 261}));
  EXPECT_EQ(encode(*tokenizer, "abc"), (Ids{'a', 262}));
  EXPECT_EQ(tokenizer->decode(Ids{260, 262}), "<x>ybc");
}

// The ids are those of tokenizers 0.23.3.
TEST(TokenizerJson, WhiteSpaceTokensInWhatAnotherTokenHasTaken) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added(259, "<b>"), added(260, "  "), added(261, "\n"), added(262, "\t")};
  json["added_tokens"][0]["rstrip"] = true;
  json["added_tokens"][2]["lstrip"] = true;
  json["added_tokens"][3]["lstrip"] = true;
  json["added_tokens"][3]["rstrip"] = true;
  const auto tokenizer = parse(json);
  EXPECT_EQ(encode(*tokenizer, "<b>\nx"), (Ids{259, 'x'}));
  EXPECT_EQ(encode(*tokenizer, "<b>\tx"), (Ids{259, 'x'}));
  EXPECT_EQ(encode(*tokenizer, "x \n<b>y\n"), (Ids{'x', 261, 259, 'y', 261}));
  EXPECT_EQ(encode(*tokenizer, "<b>  x"), (Ids{259, 260, 'x'}));
  EXPECT_EQ(encode(*tokenizer, "<b>   x"), (Ids{259, 260, ' ', 'x'}));
  EXPECT_EQ(encode(*tokenizer, "<b>x\n"), (Ids{259, 'x', 261}));
}

TEST(TokenizerJson, PartsDoNotCutWhatBelongsToAnAddedToken) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added(259, "MASK"), added(260, "ab-ab-ab")};
  json["added_tokens"][0]["rstrip"] = true;
  const auto tokenizer = parse(json);
  const std::string text = "x MASK \t yy ab-ab-ab ab-ab-a MASK z end of it";
  const Ids whole = encode(*tokenizer, text);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), 259), 2);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), 260), 1);
  for (std::size_t n = 1; n < text.size(); ++n) {  // the first n bytes, then all that they left
    Ids ids;
    const std::size_t encoded = tokenizer->encode_part(text.substr(0, n), {true, false}, ids);
    EXPECT_LE(encoded, n);
    (void)tokenizer->encode_part(text.substr(encoded), {false, true}, ids);
    EXPECT_EQ(ids, whole) << n;
  }
}

TEST(TokenizerJson, TheEndOfADocumentIsFoundByNameWhereTheTemplateHasNone) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added(259, "</s>"), added(260, "<|endoftext|>"), added(261, "[CLS]")};
  EXPECT_EQ(parse(json)->end_of_document(), 260);
  json["added_tokens"][1]["special"] = false;
  EXPECT_EQ(parse(json)->end_of_document(), 259);
  json["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"</s>", 259}}, {"cls", {"[CLS]", 261}}};
  EXPECT_EQ(parse(json)->start_of_document(), 261);
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "[CLS]"}}}}}},
                            {"special_tokens", {{"[CLS]", {{"ids", {261}}}}}}};
  EXPECT_EQ(parse(json)->start_of_document(), std::nullopt);
  EXPECT_EQ(parse(json)->end_of_document(), 261);
}

TEST(TokenizerJson, WithoutAPatternTheTextIsOneWord) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["c\xc4\xa0"] = 259;
  json["model"]["merges"].push_back("c \xc4\xa0");
  EXPECT_EQ(encode(*parse(json), "c d"), (Ids{'c', ' ', 'd'}));
  json["pre_tokenizer"]["use_regex"] = false;
  const auto tokenizer = parse(json);
  EXPECT_EQ(encode(*tokenizer, "c d"), (Ids{259, 'd'}));
  Ids ids;
  EXPECT_EQ(tokenizer->encode_part("some words that", {true, false}, ids), 0U);  // nothing is sure
}

/// The error for a tokenizer.json that `change` made from a good one.
template <class Change>
std::string refusal(const Change& change) {
  Json json = small_tokenizer();
  change(json);
  const std::string text = error_of<ConfigError>([&] { (void)parse(json); });
  EXPECT_THAT(text, StartsWith("some/tokenizer.json: "));
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

TEST(TokenizerJson, RefusesWhatItCannotDoByName) {
  EXPECT_THAT(refusal([](Json& j) { j["pre_tokenizer"] = llama3_pre_tokenizer(R"(\p{L}+|\d)"); }),
              AllOf(HasSubstr(R"("\\p{L}+|\\d")"), HasSubstr("Llama 3"), HasSubstr("Regex")));
  Json good = small_tokenizer();
  good["pre_tokenizer"] = llama3_pre_tokenizer();
  EXPECT_EQ(encode(*parse(good), "abc"), Ids{257});
  const auto with_pattern = [&](const char* step, const char* key, const Json& value) {
    return refusal([&](Json& j) {
      j["pre_tokenizer"] = llama3_pre_tokenizer();
      j["pre_tokenizer"]["pretokenizers"][step == std::string("Split") ? 0 : 1][key] = value;
    });
  };
  EXPECT_THAT(with_pattern("Split", "behavior", "Removed"), HasSubstr("Removed"));
  EXPECT_THAT(with_pattern("Split", "invert", true), HasSubstr("invert is true"));
  EXPECT_THAT(with_pattern("Split", "pattern", {{"String", " "}}), HasSubstr("regular expressions"));
  EXPECT_THAT(with_pattern("ByteLevel", "use_regex", true), HasSubstr("split twice"));
  EXPECT_THAT(with_pattern("ByteLevel", "add_prefix_space", true), HasSubstr("add_prefix_space"));
  EXPECT_THAT(with_pattern("ByteLevel", "type", "Digits"), HasSubstr("only sequence"));

  EXPECT_THAT(refusal([](Json& j) { j["normalizer"] = {{"type", "NFC"}}; }), AllOf(HasSubstr("normalizer"), HasSubstr("NFC")));
  EXPECT_THAT(refusal([](Json& j) { j["truncation"] = {{"max_length", 5}}; }), HasSubstr("truncation"));
  EXPECT_THAT(refusal([](Json& j) { j["padding"] = {{"strategy", "x"}}; }), HasSubstr("padding"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["type"] = "WordPiece"; }), HasSubstr("WordPiece"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["type"] = "Unigram"; }), HasSubstr("Unigram"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }), HasSubstr("##"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("</w>"));
  EXPECT_THAT(refusal([](Json& j) { j["pre_tokenizer"] = nullptr; }), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal([](Json& j) { j["pre_tokenizer"]["type"] = "Metaspace"; }), HasSubstr("Metaspace"));
  EXPECT_THAT(refusal([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), HasSubstr("decoder"));
  EXPECT_THAT(refusal([](Json& j) { j["post_processor"] = {{"type", "Strange"}}; }), HasSubstr("Strange"));
  EXPECT_THAT(refusal([](Json& j) {
                j["added_tokens"] = {added(259, "word")};
                j["added_tokens"][0]["single_word"] = true;
              }),
              HasSubstr("single_word"));
}

TEST(TokenizerJson, RefusesBadIdsAndTokens) {
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"]["b"] = 'a'; }), AllOf(HasSubstr("97"), HasSubstr("another token")));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"]["b"] = -1; }), AllOf(HasSubstr(R"(vocab["b"])"), HasSubstr("-1")));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"]["b"] = 1e9; }), HasSubstr("expected a whole number"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"]["b"] = 1LL << 31; }),
              HasSubstr("is 2147483648, expected a whole number from 0 to 2147483647"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"]["b"] = 18446744073709551615U; }), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"]["b"] = "98"; }), HasSubstr("expected a whole number"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["vocab"].erase("b"); }), AllOf(HasSubstr("0x62"), HasSubstr("initial_alphabet")));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["merges"].push_back("a q"); }),
              AllOf(HasSubstr("merges[3]"), HasSubstr(R"("aq")"), HasSubstr("not in model.vocab")));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["merges"].push_back("a\xc3\xbf q"); }), HasSubstr("not in model.vocab"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["merges"][1] = "abc"; }), AllOf(HasSubstr("merges[1]"), HasSubstr("one space")));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["merges"][1] = "a b c"; }), HasSubstr("one space"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["merges"][1] = {"a", "b", "c"}; }), HasSubstr("3 entries"));
  EXPECT_THAT(refusal([](Json& j) { j["model"]["merges"][1] = 5; }), HasSubstr("merges[1] is 5, expected a text"));
  EXPECT_THAT(refusal([](Json& j) { j["added_tokens"] = {added(300, "<x>")}; }), AllOf(HasSubstr("300"), HasSubstr("259")));
  EXPECT_THAT(refusal([](Json& j) { j["added_tokens"] = {added(5, "ab")}; }), AllOf(HasSubstr("is 5"), HasSubstr("256")));
  EXPECT_THAT(refusal([](Json& j) { j["added_tokens"] = {added(259, "")}; }), HasSubstr("empty"));
  EXPECT_THAT(refusal([](Json& j) {
                j["model"]["vocab"]["b c"] = 260;  // a gap at 259, and its id behind the count of tokens
                j["added_tokens"] = {added(260, "<x>")};
              }),
              HasSubstr("the id of a token in model.vocab"));
  EXPECT_THAT(refusal([](Json& j) {
                j["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"x", 999}}, {"cls", {"y", 1}}};
              }),
              AllOf(HasSubstr("999"), HasSubstr("no token")));
  EXPECT_THAT(refusal([](Json& j) {
                j["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"x", 1}}, {"cls", {"y"}}};
              }),
              HasSubstr("1 entries"));
}

// What a vocabulary costs depends on how many tokens it has, and not on their ids.
TEST(TokenizerJson, IdsMayHaveGapsOfAnyLength) {
  const auto peak_bytes = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return std::int64_t{usage.ru_maxrss} * 1024;
  };
  const std::int64_t before = peak_bytes();
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
  Json json = small_tokenizer();
  json["model"]["vocab"]["ab"] = 1 << 24;
  json["model"]["vocab"]["abc"] = kLast;
  json["added_tokens"] = {added(kLast, "abc"), added(259, "<x>")};
  const auto tokenizer = parse(json);
  EXPECT_EQ(tokenizer->vocab_size(), std::int64_t{1} << 31);
  EXPECT_EQ(encode(*tokenizer, "ab<x>abc"), (Ids{1 << 24, 259, kLast}));
  EXPECT_EQ(tokenizer->decode(Ids{1 << 24, kLast, 259}), "ababc<x>");
  for (const std::int32_t id : {260, (1 << 24) - 1, kLast - 1}) EXPECT_THROW((void)tokenizer->decode(Ids{id}), ConfigError);
  EXPECT_LT(peak_bytes() - before, 64 << 20) << "a table up to 2^24 would take 640 MiB";
}

TEST(TokenizerJson, RefusesTheSameTokenTwice) {
  std::string text = small_tokenizer().dump();
  const std::string once = R"("abc":257)";
  text.replace(text.find(once), once.size(), once + "," + once);
  EXPECT_THAT(error_of<ConfigError>([&] { (void)parse_tokenizer_json(text, "p"); }), HasSubstr("p: has the key \"abc\" twice"));
}

TEST(TokenizerJson, EveryMissingKeyIsNamed) {
  EXPECT_THAT(refusal([](Json& j) { j.erase("model"); }), AllOf(HasSubstr("model"), HasSubstr("tokenizer_config.json")));
  EXPECT_THAT(refusal([](Json& j) { j["model"].erase("vocab"); }), HasSubstr("model.vocab is missing"));
  EXPECT_THAT(refusal([](Json& j) { j["model"].erase("merges"); }), HasSubstr("model.merges is missing"));
  EXPECT_THAT(refusal([](Json& j) { j["pre_tokenizer"].erase("type"); }), HasSubstr("pre_tokenizer.type is missing"));
  EXPECT_THAT(refusal([](Json& j) { j["added_tokens"] = {{{"id", 3}}}; }), HasSubstr("added_tokens[0].content is missing"));
  for (const char* key : {"model", "added_tokens", "pre_tokenizer", "post_processor", "decoder"}) {
    for (const Json& value : {Json(5), Json("text"), Json(true)}) {
      EXPECT_THAT(refusal([&](Json& j) { j[key] = value; }), HasSubstr(key));
    }
  }
}

TEST(TokenizerJson, BrokenJsonIsAnErrorAtEveryPlace) {
  const std::string good = small_tokenizer().dump();
  const auto error = [](const std::string& text) { return error_of<ConfigError>([&] { (void)parse_tokenizer_json(text, "p"); }); };
  for (std::size_t n = 0; n < good.size(); n += 13) EXPECT_THAT(error(good.substr(0, n)), StartsWith("p: is no valid JSON")) << n;
  EXPECT_THAT(error("[1, 2]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(error(std::string(1'000'000, '[')), HasSubstr("nested"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  EXPECT_THAT(error(objects), HasSubstr("nested"));
  EXPECT_THAT(error(R"({"model": 1e999})"), HasSubstr("no valid JSON"));
  EXPECT_THAT(error("{\"a\xff\": 1}"), HasSubstr("no valid JSON"));
  // Any byte changed: read all the same, or refused; never anything else.
  std::string changed = good;
  for (std::size_t i = 0; i < good.size(); i += 3) {
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    try {
      (void)encode(*parse_tokenizer_json(changed, "p"), "abc ab\n");
    } catch (const ConfigError&) {
    }
    changed[i] = good[i];
  }
}

TEST(SentencePieceModel, ADamagedFileIsRefused) {
  const TemporaryFolder folder;
  write_text(folder / "x.model", "no model at all");
  EXPECT_THAT(error_of<ConfigError>([&] { (void)make_tokenizer(folder / "x.model"); }), HasSubstr("x.model"));
  write_text(folder / "empty.model", "");
  EXPECT_THAT(error_of<ConfigError>([&] { (void)make_tokenizer(folder / "empty.model"); }), HasSubstr("empty.model"));
}

}  // namespace
}  // namespace mica::data
