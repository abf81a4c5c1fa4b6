#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mica {

/// Names one stream of random numbers. All randomness of a run is counter-based (DESIGN section 4): an element's
/// number depends on these five values and its index only, never on who computes it or in which order.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;        ///< 0 for initialisation
  std::uint64_t sequence = 0;    ///< global sequence id; 0 for initialisation
  std::uint64_t name_hash = 0;   ///< hash_name() of the parameter or layer
};

/// FNV-1a, 64 bits.
[[nodiscard]] constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                                   std::array<std::uint32_t, 2> key) {
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

/// Elements [4*block, 4*block + 4) of the key's stream of 32-bit words.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block) {
  const std::uint64_t k = key.seed * 0x9E3779B97F4A7C15ULL ^ key.name_hash;
  return philox4x32_10({static_cast<std::uint32_t>(block),
                        static_cast<std::uint32_t>((block >> 32) << 16) ^ static_cast<std::uint32_t>(key.sequence >> 32),
                        static_cast<std::uint32_t>(key.sequence), static_cast<std::uint32_t>(key.step)},
                       {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)});
}

}  // namespace mica
