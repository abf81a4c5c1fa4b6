// SPDX-License-Identifier: Apache-2.0
#include "../../../src/data/text_split.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

std::int64_t split_of(const std::string& text, double val_fraction) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "text", std::ios::binary) << text;
  io::RawFile file = io::RawFile::open_for_reading(folder / "text");
  return find_split(file, std::ssize(text), val_fraction);
}

// Of 20 bytes the second half is held out, from the nearest end of a line on.
TEST(FindSplit, TakesTheNearestMarkAndTheEarlierOfTwo) {
  EXPECT_EQ(split_of("1234567\n9012345678\n0", 0.5), 8);
  EXPECT_EQ(split_of("12345\n789012\n4567890", 0.5), 13);
  EXPECT_EQ(split_of("1234567\n901\n34567890", 0.5), 8) << "8 and 12 are equally far";
  EXPECT_EQ(split_of("12345678901234567890", 0.5), 10) << "no mark";
  EXPECT_EQ(split_of("12345678901234567890", 0), 20);
}

}  // namespace
}  // namespace mica::data
