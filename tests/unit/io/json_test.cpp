// SPDX-License-Identifier: Apache-2.0
// What is read of JSON that nobody vouches for, and how each mistake is told.

#include "mica/io/json.hpp"

#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/temporary_folder.hpp"

namespace mica::io {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

JsonValue parse(const std::string& text) { return JsonValue::parse<CheckpointError, ConfigError>(text, "a.json"); }

TEST(Json, ValuesAreReadAsTheirTypes) {
  const JsonValue json = parse(R"({"list": [-3, 18446744073709551615, 2.5, true], "text": "\u00e4", "none": null,
                                   "object": {"b": 2, "a": {"c": 1}}})");
  EXPECT_EQ(json["list"].size(), 4U);
  EXPECT_EQ(json["list"][0].integer(-3, -3), -3);
  EXPECT_EQ(json["list"][1].unsigned_integer(), 18446744073709551615U);
  EXPECT_EQ(json["list"][2].number(), 2.5);
  EXPECT_EQ(json["list"][0].number(), -3);
  EXPECT_TRUE(json["list"][3].boolean());
  EXPECT_EQ(json["text"].text(), "\xc3\xa4");
  EXPECT_TRUE(json["none"].is_null());
  EXPECT_TRUE(json.has("none"));
  EXPECT_FALSE(json.find("none"));
  EXPECT_FALSE(json.find("nothing"));
  EXPECT_FALSE(json["text"].has("x"));
  EXPECT_EQ(json.find("object")->dump(), R"({"a":{"c":1},"b":2})");
  std::string seen;
  json["object"].for_each_key([&](const std::string& key, const JsonValue& value) { seen += key + value.dump(); });
  json["list"].for_each([&](const JsonValue& value) { seen += " " + value.dump(); });
  EXPECT_EQ(seen, R"(a{"c":1}b2 -3 18446744073709551615 2.5 true)");
}

TEST(Json, AValueOutlivesTheTextItCameFrom) {
  const JsonValue inner = parse(R"({"a": [{"b": "kept"}]})")["a"][0]["b"];
  EXPECT_EQ(inner.text(), "kept");
}

TEST(Json, AMistakeNamesFileAndKeyAndWhatIsThere) {
  const JsonValue json = parse(R"({"a": {"b": [1, {"c": -1}]}, "n": 9223372036854775808, "long": ")" + std::string(299, 'x') +
                               "\xc3\xa4\xc3\xa4" + R"(", "x.y": {"q\"": 1.5}})");
  const auto error = [](auto read) { return error_of<ConfigError>([&] { (void)read(); }); };
  EXPECT_EQ(error([&] { return json["a"]["b"][1]["c"].integer(0); }), "a.json: a.b[1].c is -1, expected a whole number from 0");
  EXPECT_EQ(error([&] { return json["a"]["b"][0].integer(2, 5); }), "a.json: a.b[0] is 1, expected a whole number from 2 to 5");
  EXPECT_EQ(error([&] { return json["a"]["b"][0].integer(-5, 0); }), "a.json: a.b[0] is 1, expected a whole number from -5 to 0");
  EXPECT_EQ(error([&] { return json["n"].integer(std::numeric_limits<std::int64_t>::min()); }),
            "a.json: n is 9223372036854775808, expected a whole number from -9223372036854775808");
  EXPECT_EQ(error([&] { return json["a"]["b"][1]["c"].unsigned_integer(); }), "a.json: a.b[1].c is -1, expected a whole number from 0");
  EXPECT_EQ(error([&] { return json["a"]["b"].number(); }), R"(a.json: a.b is [1,{"c":-1}], expected a number)");
  EXPECT_EQ(error([&] { return json["n"].boolean(); }), "a.json: n is 9223372036854775808, expected true or false");
  EXPECT_EQ(error([&] { return json["n"].text(); }), "a.json: n is 9223372036854775808, expected a text");
  EXPECT_EQ(error([&] { return json["a"].size(); }), R"(a.json: a is {"b":[1,{"c":-1}]}, expected a list)");
  EXPECT_EQ(error([&] { return json["a"]["b"]["c"]; }), R"(a.json: a.b is [1,{"c":-1}], expected an object)");
  EXPECT_EQ(error([&] { return json["a"]["b"].find("c"); }), R"(a.json: a.b is [1,{"c":-1}], expected an object)");
  EXPECT_EQ(error([&] { return json["a"]["c"]; }), "a.json: the key a.c is missing");
  EXPECT_EQ(error([&] { return json["a"]["b"][2]; }), "a.json: a.b has 2 entries, expected at least 3");
  EXPECT_EQ(error([&] {
              json.fail("has no use");
              return 0;
            }),
            "a.json: has no use");
  EXPECT_EQ(error([&] {
              json["x.y"].for_each_key([](const auto&, const JsonValue& value) { (void)value.integer(0); });
              return 0;
            }),
            R"(a.json: x.y["q\""] is 1.5, expected a whole number from 0)");
  // Shortened, and not inside a character.
  EXPECT_EQ(error([&] { return json["long"].size(); }), "a.json: long is \"" + std::string(299, 'x') + "..., expected a list");
}

TEST(Json, WhatIsNoJsonObjectIsRefused) {
  const auto error = [](const std::string& text) { return error_of<CheckpointError>([&] { (void)parse(text); }); };
  EXPECT_THAT(error(""), StartsWith("a.json: is no valid JSON: "));
  EXPECT_THAT(error("{\"a\": 1} x"), HasSubstr("no valid JSON"));
  EXPECT_THAT(error("{\"a\xff\": 1}"), HasSubstr("no valid JSON"));
  EXPECT_THAT(error(std::string("{\"a\": 1}\0 more", 14)), HasSubstr("NUL"));
  for (const char* no_number : {"NaN", "Infinity", "-Infinity", "1e999", "01", "0x10", "+1", ".5"}) {
    EXPECT_THAT(error(std::string("{\"a\": ") + no_number + "}"), StartsWith("a.json: is no valid JSON: ")) << no_number;
  }
  EXPECT_EQ(parse("\xEF\xBB\xBF{\"a\": 1}")["a"].integer(0), 1) << "a byte order mark is read over";
  EXPECT_EQ(error("[1]"), "a.json: is no JSON object");
  EXPECT_EQ(error(R"({"a": {"x": 1, "y": {"x": 2}, "x": 3}})"), "a.json: has the key \"x\" twice");
  EXPECT_NO_THROW((void)parse(R"({"a": {"x": 1}, "b": {"x": 1}, "x": [{"x": 1}, {"x": 2}]})"));
  const auto nested = [](int levels) {
    return "{\"a\": " + std::string(static_cast<std::size_t>(levels) - 1, '[') + std::string(static_cast<std::size_t>(levels) - 1, ']') +
           "}";
  };
  EXPECT_NO_THROW((void)parse(nested(16)));
  EXPECT_EQ(error(nested(17)), "a.json: is nested deeper than 16 levels");
  EXPECT_NO_THROW((void)JsonValue::parse<ConfigError>(nested(17), "p", 32));
}

TEST(Json, AFileHasALimit) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "b.json";
  EXPECT_EQ(error_of<ConfigError>([&] { (void)JsonValue::read<CheckpointError>(path, 9); }), path + ": no such file");
  std::ofstream(path) << R"({"a":"x"})";
  EXPECT_EQ(JsonValue::read<CheckpointError>(path, 9)["a"].text(), "x");
  EXPECT_EQ(error_of<CheckpointError>([&] { (void)JsonValue::read<CheckpointError>(path, 8); }),
            path + ": has 9 bytes, expected at most 8");
}

}  // namespace
}  // namespace mica::io
