// SPDX-License-Identifier: Apache-2.0
#include "byte_pairs.hpp"

#include <algorithm>
#include <bit>
#include <queue>

#include "mica/core/error.hpp"

namespace mica::data {
namespace {

constexpr std::size_t kShortBytes = 48;  ///< up to this length scanning all pairs for every merge is faster than a queue

constexpr std::size_t kMaxBytes = 1 << 30;  ///< of a word; merging takes some 50 bytes of memory for each

/// One symbol of a long word; symbols form a linked list, since merging removes one from the middle.
struct Symbol {
  std::int32_t id;
  std::int32_t previous;
  std::int32_t next;  ///< -1: the last one
  bool is_alive = true;
};

struct Candidate {
  std::uint32_t rank;
  std::int32_t at;  ///< the left symbol
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;

  /// For a queue whose top is the lowest rank, then the leftmost.
  bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) : mask_(std::bit_ceil(2 * merges.size() + 2) - 1), entries_(mask_ + 1) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::uint64_t slot = slot_of(pair);
    while (entries_[slot].rank != kNoRank && entries_[slot].pair != pair) slot = (slot + 1) & mask_;
    entries_[slot] = {pair, static_cast<std::uint32_t>(rank), merges[rank].result};
  }
}

void BytePairs::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.size() == 1) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(word[0])]);
    return;
  }
  if (word.size() > WordCache::kMaxWordBytes) {
    merge_long(word, ids);
    return;
  }
  if (const auto found = cache_.find(word)) {
    ids.insert(ids.end(), found->begin(), found->end());
    return;
  }
  const std::size_t before = ids.size();
  word.size() <= kShortBytes ? merge_short(word, ids) : merge_long(word, ids);
  cache_.insert(word, std::span(ids).subspan(before));
}

void BytePairs::merge_short(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (!whole_words_.empty()) {
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  std::array<std::int32_t, kShortBytes> symbols{};
  std::array<MergeTable::Entry, kShortBytes> pairs;  // pairs[i]: of symbols i and i + 1
  std::size_t n = word.size();
  for (std::size_t i = 0; i < n; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  for (std::size_t i = 0; i + 1 < n; ++i) pairs[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    symbols[best] = pairs[best].result;
    --n;
    for (std::size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) pairs[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(n));
}

void BytePairs::merge_long(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (!whole_words_.empty()) {
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  require<ConfigError>(word.size() <= kMaxBytes, "{} bytes without the end of a word: is this text? A word may have up to {} bytes",
                       word.size(), kMaxBytes);
  const auto n = static_cast<std::int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (std::int32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_ids_[static_cast<unsigned char>(word[i])], i - 1, i + 1 < n ? i + 1 : -1};
  }
  std::priority_queue<Candidate> queue;
  const auto offer = [&](std::int32_t at) {
    if (at < 0 || symbols[at].next < 0) return;
    const std::int32_t left = symbols[at].id;
    const std::int32_t right = symbols[symbols[at].next].id;
    const MergeTable::Entry& merge = merges_.find(left, right);
    if (merge.rank != MergeTable::kNoRank) queue.push({merge.rank, at, left, right, merge.result});
  };
  for (std::int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& symbol = symbols[top.at];
    // Its symbols may have been merged with others since.
    if (!symbol.is_alive || symbol.id != top.left || symbol.next < 0 || symbols[symbol.next].id != top.right) continue;
    Symbol& gone = symbols[symbol.next];
    symbol.id = top.result;
    symbol.next = gone.next;
    gone.is_alive = false;
    if (gone.next >= 0) symbols[gone.next].previous = top.at;
    offer(symbol.previous);
    offer(top.at);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace mica::data
