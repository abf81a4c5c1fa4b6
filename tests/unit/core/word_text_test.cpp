// SPDX-License-Identifier: Apache-2.0
#include "mica/core/word_text.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace mica {
namespace {

TEST(WordText, WordsOfAnyBytesComeBack) {
  const std::vector<std::string> words{"", "7 seven", " ", std::string("a\0b", 3), "\xff\n"};
  WordWriter writer;
  writer.put_count(words.size());
  for (const std::string& word : words) writer.put(word);
  const std::string text = std::move(writer).text();
  WordReader reader(text);
  std::vector<std::string> read;
  reader.for_count([&] { read.push_back(reader.word()); });
  EXPECT_EQ(read, words);
}

TEST(WordText, NumbersKeepTheirBits) {
  WordWriter writer;
  const std::vector<double> numbers{0.1, -0.0, 5e-324, std::numeric_limits<double>::max(), std::numeric_limits<double>::infinity()};
  for (const double number : numbers) writer.put_number(number);
  writer.put_number(std::nan(""));
  writer.put("-9223372036854775808");
  const std::string text = std::move(writer).text();
  WordReader reader(text);
  for (const double number : numbers) {
    const auto read = reader.number<double>();
    EXPECT_EQ(read, number);
    EXPECT_EQ(std::signbit(read), std::signbit(number));
  }
  EXPECT_TRUE(std::isnan(reader.number<double>()));
  EXPECT_EQ(reader.number<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
}

TEST(WordTextDeathTest, ATextThatNobodyWroteIsADefect) {
  for (const char* text : {"", "3", "x abc", "4 abc"}) {
    EXPECT_DEATH((void)WordReader(text).word(), "a word|a number") << text;
  }
  EXPECT_DEATH((void)WordReader("2 1x").number<int>(), "a number is written as it is read");
}

}  // namespace
}  // namespace mica
