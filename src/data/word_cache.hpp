// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: the ids of words that were encoded before.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mica::data {

/// A hash table of bounded size: when it is full it is emptied, and the words that follow fill it again.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 256;  ///< longer words are too rare to keep

  WordCache() : slots_(kNumSlots) {}

  /// Valid until the next insert().
  [[nodiscard]] std::optional<std::span<const std::int32_t>> find(std::string_view word) const;
  /// @param word  one that find() does not find.
  void insert(std::string_view word, std::span<const std::int32_t> ids);

 private:
  static constexpr std::size_t kNumSlots = 1 << 17;
  static constexpr std::size_t kMaxWords = kNumSlots / 2;

  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t text_begin = 0;
    std::uint32_t ids_begin = 0;
    std::uint16_t text_bytes = 0;  ///< 0: free
    std::uint16_t num_ids = 0;
  };

  std::vector<Slot> slots_;
  std::string texts_;
  std::vector<std::int32_t> ids_;
  std::size_t num_words_ = 0;
};

}  // namespace mica::data
