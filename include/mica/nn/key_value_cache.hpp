// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Keys and values that attention layers keep of the tokens they have seen, so that a sequence goes on without its beginning being
/// computed again. [Note: cached forward]
/// Context::cache turns a forward on ids [B, T] without a Record into one that continues sequences: row b's tokens follow the
/// rows[b].past tokens that are in its slot. Attention layers add their keys and values to it; positions count from `past`; the
/// head returns the logits that logits() asks for. Everything else computes token by token and knows nothing of it, so that units
/// gather and reshard as in any forward. Nothing is kept of the tokens themselves: whoever generates says how many a slot has,
/// and takes some back by giving fewer.
/// @code
///   nn::KeyValueCache cache(/*slots=*/1, /*capacity=*/128);
///   const nn::ScopedValue continued(context.cache, &cache);
///   cache.begin({{.slot = 0, .past = 0}}, prompt_length, nn::KeyValueCache::Logits::last);
///   logits = model.forward(context, {ids}, nullptr);   // [1, vocab], of the prompt's last token
/// @endcode
class KeyValueCache {
 public:
  enum class Logits : std::uint8_t {
    last,  ///< of each row's last token: [B, vocab]
    all,   ///< of all tokens: [B*T, vocab]
  };

  /// @param slots  sequences at a time  @param capacity  tokens of each
  KeyValueCache(std::int64_t slots, std::int64_t capacity) : slots_(slots), capacity_(capacity) {}

  [[nodiscard]] std::int64_t slots() const { return slots_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// Says what the next forward's rows are, of seq_len tokens each. The forward before it has run to its end.
  void begin(std::vector<CachedRow> rows, std::int64_t seq_len, Logits logits);

  // For modules, in a forward.
  [[nodiscard]] const std::vector<CachedRow>& rows() const { return rows_; }
  /// Tokens of the longest row's sequence, those of this forward included; 0 without rows.
  [[nodiscard]] std::int64_t longest() const;
  /// i32 [B, T]
  [[nodiscard]] Tensor positions() const;
  [[nodiscard]] Logits logits() const { return logits_; }
  /// A layer's keys and values [slots, capacity, width]; made at its first use.
  [[nodiscard]] AttentionCache of(const Module& layer, const Context& context, std::int64_t width, DType dtype);

 private:
  struct Layer {
    Tensor keys, values;
  };

  std::int64_t slots_, capacity_;
  std::vector<CachedRow> rows_;
  std::int64_t seq_len_ = 0;
  Logits logits_ = Logits::last;
  std::vector<std::int32_t> positions_;
  std::unordered_map<const Module*, Layer> layers_;
};

}  // namespace mica::nn
