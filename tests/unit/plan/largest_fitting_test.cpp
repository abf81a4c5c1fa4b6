// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/largest_fitting.hpp"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace mica::plan {
namespace {

constexpr std::int64_t kMost = 1 << 14;

struct Search {
  std::int64_t found = 0;
  std::size_t num_peaks = 0;
};
template <class Peak>
Search search(const Peak& peak_of, std::int64_t capacity) {
  std::multiset<std::int64_t> asked;
  const auto ask = [&](std::int64_t size) {
    asked.insert(size);
    EXPECT_LE(asked.size(), 1000u) << "a linear search";
    return asked.size() > 1000 ? capacity + 1 : peak_of(size);
  };
  const std::int64_t found = largest_fitting(ask, capacity, kMost);
  for (const std::int64_t size : asked) EXPECT_EQ(asked.count(size), 1u) << size << " is asked for twice";
  return {found, asked.size()};
}

TEST(LargestFitting, WhereMemoryIsLinearAFewPeaksDo) {
  for (const std::int64_t largest : {1, 2, 3, 17, 500, 16383, 16384}) {
    const Search s = search([](std::int64_t size) { return 1000 + 10 * size; }, 1000 + 10 * largest + 9);
    EXPECT_EQ(s.found, largest);
    EXPECT_LE(s.num_peaks, 4u);
  }
}

// The optimizer's workspace hides the activations of small micro-batches: sizes 1 and 2 tell nothing.
TEST(LargestFitting, WhereSmallSizesPeakAlikeItHalves) {
  for (const std::int64_t alike : {2, 20, 300}) {
    for (std::int64_t largest = alike; largest <= kMost; largest += 101) {
      const Search s = search([&](std::int64_t size) { return 1000 * std::max(size, alike); }, 1000 * largest + 500);
      ASSERT_EQ(s.found, largest) << alike;
      ASSERT_LE(s.num_peaks, 31u) << largest << " " << alike;
    }
  }
}

TEST(LargestFitting, TheEndsOfTheRange) {
  EXPECT_EQ(search([](std::int64_t) { return 5; }, 4).found, 0);
  EXPECT_EQ(search([](std::int64_t) { return 5; }, 5).found, kMost);
  EXPECT_EQ(largest_fitting([](std::int64_t) { return 5; }, 5, 1), 1);
}

}  // namespace
}  // namespace mica::plan
