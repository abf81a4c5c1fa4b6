// SPDX-License-Identifier: Apache-2.0
#include "../../../src/data/word_cache.hpp"

#include <array>

#include <gtest/gtest.h>

namespace mica::data {
namespace {

// Three times as many words as it has places: it is emptied on the way, and always knows the last one.
TEST(WordCache, HoldsBoundedlyManyWords) {
  WordCache cache;
  const auto word = [](int i) { return "word" + std::to_string(i); };
  constexpr int kWords = 400'000;
  for (int i = 0; i < kWords; ++i) {
    const std::array<std::int32_t, 2> ids{i, -i};
    EXPECT_FALSE(cache.find(word(i)));
    cache.insert(word(i), ids);
    const auto found = cache.find(word(i));
    ASSERT_TRUE(found);
    ASSERT_EQ(found->size(), 2U);
    EXPECT_EQ((*found)[1], -i);
  }
  EXPECT_TRUE(cache.find(word(kWords - 2)));
  EXPECT_FALSE(cache.find(word(0)));
}

}  // namespace
}  // namespace mica::data
