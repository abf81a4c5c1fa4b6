// SPDX-License-Identifier: Apache-2.0
#include "mica/io/crc32c.hpp"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define MICA_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define MICA_CRC_TARGET __attribute__((target("+crc")))
#endif

// A CRC is the remainder of the message, read as a polynomial over GF(2), modulo P. Appending n zero bytes multiplies
// the remainder by x^(8n) mod P, which is linear; so the results of interleaved streams can be combined. Bits are
// reflected throughout: the top bit of a word is x^0.

namespace mica::io {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;
constexpr std::uint32_t kOne = 0x80000000U;  // x^0

/// a * b mod P.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit) & 1U) product ^= b;
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0U);  // b * x
  }
  return product;
}

/// x^(8n) mod P.
constexpr std::uint32_t power_of_bytes(std::uint64_t n) {
  std::uint32_t result = kOne;
  std::uint32_t square = kOne >> 8;  // x^8
  for (; n != 0; n >>= 1) {
    if ((n & 1U) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

using Table = std::array<std::uint32_t, 256>;

/// Tables of the portable version: table k advances a byte that is followed by k zero bytes.
constexpr std::array<Table, 8> make_slice_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xffU];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kSlices = make_slice_tables();

/// Works on the inner state (the checksum inverted), as do the functions below.
std::uint32_t advance_portable(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    word ^= state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= kSlices[7 - k][(word >> (8 * k)) & 0xffU];
  }
  for (; bytes > 0; --bytes, ++p) state = (state >> 8) ^ kSlices[0][(state ^ static_cast<std::uint32_t>(*p)) & 0xffU];
  return state;
}

#if defined(MICA_CRC_TARGET)

/// Multiplication by x^(8 * kBytes) as four table look-ups.
template <std::size_t kBytes>
struct Shift {
  static constexpr std::array<Table, 4> make() {
    const std::uint32_t factor = power_of_bytes(kBytes);
    std::array<Table, 4> tables{};
    for (std::size_t k = 0; k < 4; ++k) {
      // Linear: fill the single bits, then every value from a smaller one and its lowest bit.
      for (std::uint32_t value = 1; value < 256; ++value) {
        const std::uint32_t lowest = value & (~value + 1U);
        tables[k][value] = lowest == value ? multiply(value << (8 * k), factor) : tables[k][value ^ lowest] ^ tables[k][lowest];
      }
    }
    return tables;
  }
  static constexpr std::array<Table, 4> kTables = make();
  static std::uint32_t apply(std::uint32_t state) {
    return kTables[0][state & 0xffU] ^ kTables[1][(state >> 8) & 0xffU] ^ kTables[2][(state >> 16) & 0xffU] ^ kTables[3][state >> 24];
  }
};

std::uint64_t load(const std::byte* p) {
  std::uint64_t word = 0;
  std::memcpy(&word, p, 8);
  return word;
}

#if defined(__x86_64__)

MICA_CRC_TARGET inline std::uint64_t step(std::uint64_t state, std::uint64_t word) { return _mm_crc32_u64(state, word); }
MICA_CRC_TARGET inline std::uint32_t step(std::uint32_t state, std::byte byte) {
  return _mm_crc32_u8(state, static_cast<unsigned char>(byte));
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#else

MICA_CRC_TARGET inline std::uint64_t step(std::uint64_t state, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(state), word);
}
MICA_CRC_TARGET inline std::uint32_t step(std::uint32_t state, std::byte byte) { return __crc32cb(state, static_cast<std::uint8_t>(byte)); }
/// Optional in ARMv8.0, mandatory from ARMv8.1 on.
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#endif

/// Three streams of kBytes each hide the instruction's latency of three cycles.
template <std::size_t kBytes>
MICA_CRC_TARGET std::uint32_t advance_triples(std::uint32_t state, const std::byte*& p, std::size_t& bytes) {
  for (; bytes >= 3 * kBytes; bytes -= 3 * kBytes, p += 3 * kBytes) {
    std::uint64_t a = state;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < kBytes; i += 8) {
      a = step(a, load(p + i));
      b = step(b, load(p + kBytes + i));
      c = step(c, load(p + 2 * kBytes + i));
    }
    state = Shift<kBytes>::apply(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    state = Shift<kBytes>::apply(state) ^ static_cast<std::uint32_t>(c);
  }
  return state;
}

MICA_CRC_TARGET std::uint32_t advance_hardware(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  state = advance_triples<8192>(state, p, bytes);
  state = advance_triples<256>(state, p, bytes);
  for (; bytes >= 8; bytes -= 8, p += 8) state = static_cast<std::uint32_t>(step(std::uint64_t{state}, load(p)));
  for (; bytes > 0; --bytes, ++p) state = step(state, *p);
  return state;
}

#else

std::uint32_t advance_hardware(std::uint32_t state, const std::byte* p, std::size_t bytes) { return advance_portable(state, p, bytes); }

bool has_instruction() { return false; }

#endif

}  // namespace

bool crc32c_is_hardware() { return has_instruction(); }

std::uint32_t crc32c(const void* data, std::int64_t bytes, std::uint32_t previous) {
  if (bytes <= 0) return previous;
  const auto* p = static_cast<const std::byte*>(data);
  const auto n = static_cast<std::size_t>(bytes);
  return ~(has_instruction() ? advance_hardware(~previous, p, n) : advance_portable(~previous, p, n));
}

std::uint32_t crc32c_portable(const void* data, std::int64_t bytes, std::uint32_t previous) {
  if (bytes <= 0) return previous;
  return ~advance_portable(~previous, static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes));
}

}  // namespace mica::io
