// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica::cpu {

/// Attention of tokens that follow cached ones. What a sequence begins with is computed by tiles (attention.hpp), what follows
/// query by query: reading the keys and values once for each is what the work consists of.
struct CachedAttention {
  AttentionShape shape;
  ConstQkv in;
  std::vector<double> inv_freq;
  AttentionCache cache;
  std::vector<CachedRow> rows;
  TensorView y;

  [[nodiscard]] std::int64_t scratch_bytes() const;
  void run(void* scratch) const;

 private:
  struct Scratch;
  [[nodiscard]] bool starts_by_tiles(const CachedRow& row) const;
  [[nodiscard]] AttentionShape one_sequence() const;
  /// Fills the cache and `queries`: rotated and without gaps.
  void append(const Scratch& scratch) const;
  void attend(const Scratch& scratch) const;
};

}  // namespace mica::cpu
