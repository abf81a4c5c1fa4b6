// SPDX-License-Identifier: Apache-2.0
#include "mica/io/crc32c.hpp"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace mica::io {
namespace {

std::vector<unsigned char> random_bytes(std::size_t n) {
  std::mt19937_64 generator(n + 1);
  std::vector<unsigned char> bytes(n);
  for (auto& b : bytes) b = static_cast<unsigned char>(generator());
  return bytes;
}

// The answers of RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, KnownAnswers) {
  std::string rising(32, '\0');
  std::string falling(32, '\0');
  for (int i = 0; i < 32; ++i) rising[static_cast<std::size_t>(i)] = static_cast<char>(i);
  for (int i = 0; i < 32; ++i) falling[static_cast<std::size_t>(i)] = static_cast<char>(31 - i);
  for (const bool portable : {false, true}) {
    const auto crc = [&](const std::string& s) {
      const auto n = static_cast<std::int64_t>(s.size());
      return portable ? crc32c_portable(s.data(), n) : crc32c(s.data(), n);
    };
    EXPECT_EQ(crc(""), 0U);
    EXPECT_EQ(crc("a"), 0xC1D04330U);
    EXPECT_EQ(crc("123456789"), 0xE3069283U);
    EXPECT_EQ(crc(std::string(32, '\0')), 0x8A9136AAU);
    EXPECT_EQ(crc(std::string(32, '\xff')), 0x62A8AB43U);
    EXPECT_EQ(crc(rising), 0x46DD794EU);
    EXPECT_EQ(crc(falling), 0x113FDB5CU);
  }
}

TEST(Crc32c, HardwareAgreesWithPortableAtEveryBorderAndAlignment) {
  const auto bytes = random_bytes(100000);
  for (const std::int64_t n :
       {0, 1, 7, 8, 9, 63, 255, 256, 767, 768, 769, 1535, 1536, 8191, 24575, 24576, 24577, 24576 + 768 + 9, 49152, 99990}) {
    for (std::int64_t offset = 0; offset < 9; ++offset) {
      EXPECT_EQ(crc32c(bytes.data() + offset, n), crc32c_portable(bytes.data() + offset, n)) << n << " at " << offset;
    }
  }
}

TEST(Crc32c, ContinuesFromAnEarlierPart) {
  const auto bytes = random_bytes(60000);
  const std::uint32_t whole = crc32c(bytes.data(), 60000);
  for (const std::int64_t cut : {0, 1, 5, 24576, 30001, 59999, 60000}) {
    EXPECT_EQ(crc32c(bytes.data() + cut, 60000 - cut, crc32c(bytes.data(), cut)), whole) << cut;
  }
}

TEST(Crc32c, FindsEverySingleFlippedBit) {
  auto bytes = random_bytes(1000);
  const std::uint32_t good = crc32c(bytes.data(), 1000);
  for (std::size_t bit = 0; bit < 8000; ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
    ASSERT_NE(crc32c(bytes.data(), 1000), good) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
  }
}

}  // namespace
}  // namespace mica::io
