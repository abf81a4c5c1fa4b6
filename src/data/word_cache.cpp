// SPDX-License-Identifier: Apache-2.0
#include "word_cache.hpp"

#include <algorithm>
#include <cstring>

namespace mica::data {
namespace {

/// Eight bytes at a time: words are short.
std::uint64_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size() * 0x9e3779b97f4a7c15U;
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0xff51afd7ed558ccdU;
    hash ^= hash >> 32;
  };
  std::size_t i = 0;
  for (; i + 8 <= word.size(); i += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, word.data() + i, 8);
    mix(value);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, word.data() + i, word.size() - i);
  mix(rest);
  return hash;
}

}  // namespace

std::optional<std::span<const std::int32_t>> WordCache::find(std::string_view word) const {
  const std::uint64_t hash = hash_of(word);
  for (std::size_t at = hash % kNumSlots;; at = (at + 1) % kNumSlots) {
    const Slot& slot = slots_[at];
    if (slot.text_bytes == 0) return std::nullopt;
    if (slot.hash == hash && slot.text_bytes == word.size() &&
        std::memcmp(texts_.data() + slot.text_begin, word.data(), word.size()) == 0) {
      return std::span(ids_).subspan(slot.ids_begin, slot.num_ids);
    }
  }
}

void WordCache::insert(std::string_view word, std::span<const std::int32_t> ids) {
  if (num_words_ == kMaxWords) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    texts_.clear();
    ids_.clear();
    num_words_ = 0;
  }
  const std::uint64_t hash = hash_of(word);
  std::size_t at = hash % kNumSlots;
  while (slots_[at].text_bytes != 0) at = (at + 1) % kNumSlots;
  slots_[at] = {hash, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(ids_.size()),
                static_cast<std::uint16_t>(word.size()), static_cast<std::uint16_t>(ids.size())};
  texts_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++num_words_;
}

}  // namespace mica::data
