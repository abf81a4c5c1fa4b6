// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: byte-pair encoding of one word at a time.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "word_cache.hpp"

namespace mica::data {

/// Tokens left and right, side by side, become result.
struct Merge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t result = 0;
};

/// Which merge a pair of ids has: open addressing, since looking up is all that encoding does.
class MergeTable {
 public:
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
  struct Entry {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = kNoRank;
    std::int32_t result = -1;
  };

  /// The index in `merges` is the rank. Of equal pairs the last one counts.
  explicit MergeTable(const std::vector<Merge>& merges);
  /// rank kNoRank if the pair does not merge.
  [[nodiscard]] const Entry& find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    for (std::uint64_t slot = slot_of(pair);; slot = (slot + 1) & mask_) {
      const Entry& entry = entries_[slot];
      if (entry.pair == pair || entry.rank == kNoRank) return entry;
    }
  }

 private:
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t pair) const { return (pair * 0x9e3779b97f4a7c15U >> 20) & mask_; }

  std::uint64_t mask_;
  std::vector<Entry> entries_;  ///< a power of two, at most half full
};

/// Starts from the bytes of a word and merges the pair of lowest rank, the leftmost of equal ones, until none is left.
/// Caches the ids of words: not for several threads at once.
class BytePairs {
 public:
  using WholeWords = std::unordered_map<std::string, std::int32_t>;

  /// @param byte_ids     the token of each byte.
  /// @param whole_words  words that are a token whatever the merges say; may be empty.
  BytePairs(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges, WholeWords whole_words)
      : byte_ids_(byte_ids), merges_(merges), whole_words_(std::move(whole_words)) {}

  /// Appends the ids of a word of 1 byte or more.
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  void merge_short(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<std::int32_t>& ids) const;

  std::array<std::int32_t, 256> byte_ids_;
  MergeTable merges_;
  WholeWords whole_words_;
  mutable WordCache cache_;
};

}  // namespace mica::data
