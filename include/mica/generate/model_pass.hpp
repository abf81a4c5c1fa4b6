// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mica/nn/key_value_cache.hpp"

namespace mica::generate {

/// Runs forwards of a language model and waits for each. If the model is sharded, every forward is a collective: all ranks run the same
/// number, with any number of rows; a rank without work runs idle().
class ModelPass {
 public:
  /// @param model, context  on the CPU; outlive it  @param slots, capacity  of the cache ([Note: cached forward])
  ModelPass(nn::Module& model, nn::Context& context, std::int64_t slots, std::int64_t capacity);

  /// Continues sequences by ids [rows.size(), T]. @returns logits [rows.size(), vocab], or [rows.size() * T, vocab]; valid until the next
  /// call.
  std::span<const float> logits(std::vector<CachedRow> rows, std::vector<std::int32_t> ids, nn::KeyValueCache::Logits which);
  /// Sum of -log p(target), in nats, of one sequence that begins with ids[0]. A target of -1 is not counted. The cache is not used.
  double loss(std::vector<std::int32_t> ids, std::vector<std::int32_t> targets);
  /// A pass without rows, to take part in the other ranks' pass.
  void idle();

  [[nodiscard]] std::int64_t slots() const { return cache_.slots(); }
  [[nodiscard]] std::int64_t capacity() const { return cache_.capacity(); }

 private:
  nn::Module& model_;
  nn::Context& context_;
  nn::KeyValueCache cache_;
  Tensor result_;
};

}  // namespace mica::generate
