// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mica {

/// Identifies one stream of random numbers. All randomness of a run is counter-based (docs/design.md, Modules): a number
/// depends on these values and its index only, never on which rank computes it or in which order.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;       ///< below 2^32; 0 for initialisation
  std::uint64_t sequence = 0;   ///< global sequence id, below 2^48; 0 for initialisation
  std::uint64_t name_hash = 0;  ///< hash_name() of the parameter or layer
};

/// FNV-1a, 64 bits.
[[nodiscard]] constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ULL * counter[0];
    const std::uint64_t p1 = 0xCD9E8D57ULL * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// A bijection of 64-bit words in which every input bit moves about half of the output bits (the finaliser of
/// splitmix64; Steele, Lea and Flood, OOPSLA 2014).
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// How a RandomKey becomes Philox's key and counter. [Note: random streams]
/// The 64-bit key is a bijection of the name for a given seed and of the seed for a given name, so two streams that differ in
/// one of the two never share a key; seeds 1, 2, 3, ... give unrelated keys (Philox adds a constant to its key each round, so
/// raw neighbouring seeds would be related). Step, sequence and block are in disjoint bits of the counter, so within a key no
/// two of (step < 2^32, sequence < 2^48, block < 2^48) collide.
struct PhiloxStream {
  std::uint32_t key0, key1;
  std::uint32_t counter1;  // sequence[47:32]; the upper half takes block[47:32]
  std::uint32_t counter2;  // sequence[31:0]
  std::uint32_t counter3;  // step

  constexpr PhiloxStream(const RandomKey& key)  // NOLINT(google-explicit-constructor)
      : PhiloxStream(key, mix64(mix64(key.seed + 0x9E3779B97F4A7C15ULL) ^ key.name_hash)) {}

 private:
  constexpr PhiloxStream(const RandomKey& key, std::uint64_t mixed)
      : key0(static_cast<std::uint32_t>(mixed)),
        key1(static_cast<std::uint32_t>(mixed >> 32)),
        counter1(static_cast<std::uint32_t>(key.sequence >> 32)),
        counter2(static_cast<std::uint32_t>(key.sequence)),
        counter3(static_cast<std::uint32_t>(key.step)) {}
};

/// Elements [4*block, 4*block + 4) of the stream of 32-bit words; a RandomKey converts.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_block(const PhiloxStream& s, std::uint64_t block) {
  return philox4x32_10(
      {static_cast<std::uint32_t>(block), s.counter1 ^ (static_cast<std::uint32_t>(block >> 32) << 16), s.counter2, s.counter3},
      {s.key0, s.key1});
}

}  // namespace mica
