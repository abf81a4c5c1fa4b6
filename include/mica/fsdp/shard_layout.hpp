// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mica/fsdp/piece.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::fsdp {

struct ParameterSpec {
  std::string name;
  Shape shape;
};

/// How a unit's parameters are cut over S shard ranks: pure math, no storage. Three arrays: [Note: layouts]
///   shard      [P]    what one rank holds; P = shard_numel(), equal on all ranks
///   gathered   [S*P]  the shards of all ranks one after another: what an all-gather writes and a reduce-scatter reads
///   unsharded  [U]    each parameter whole and contiguous, as the module sees it; U = unsharded_numel()
/// Elements that belong to no parameter are padding and stay zero. If rearrangement() is empty, unsharded IS gathered.
class ShardLayout {
 public:
  virtual ~ShardLayout() = default;

  /// "flat", "per_parameter 0,0,1": layouts of equal name, parameters and ranks are equal.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  [[nodiscard]] int shard_size() const { return shard_size_; }
  /// Elements each rank holds, padding included.
  [[nodiscard]] virtual std::int64_t shard_numel() const = 0;
  [[nodiscard]] std::int64_t gathered_numel() const { return shard_numel() * shard_size_; }
  [[nodiscard]] virtual std::int64_t unsharded_numel() const { return gathered_numel(); }
  /// Elements of parameters, without padding.
  [[nodiscard]] std::int64_t param_numel() const;
  /// One for each parameter of which this rank holds a non-empty part, in parameter order, which is the order of offsets.
  [[nodiscard]] virtual std::vector<Piece> pieces(int shard_rank) const = 0;

  /// Where parameter i begins in the unsharded array.
  [[nodiscard]] std::int64_t begin_of(std::size_t i) const { return begins_[i]; }
  /// Half-open ranges of the unsharded array that no parameter covers: alignment gaps and padding.
  struct Gap {
    std::int64_t begin;
    std::int64_t end;
  };
  [[nodiscard]] const std::vector<Gap>& gaps() const { return gaps_; }
  /// The copies from the gathered array (src) to the unsharded one (dst); they cover all of gathered.
  [[nodiscard]] const std::vector<BlockCopy>& rearrangement() const { return rearrangement_; }

 protected:
  ShardLayout(std::vector<ParameterSpec> parameters, int shard_size);

  std::vector<std::int64_t> begins_;
  std::vector<Gap> gaps_;
  std::vector<BlockCopy> rearrangement_;

 private:
  std::vector<ParameterSpec> parameters_;
  int shard_size_;
};

/// Parameters flattened and concatenated, each begin rounded up to a multiple of alignment_numel, the total to a multiple of
/// the shard size; rank r holds elements [r*P, (r+1)*P) (docs/parity.md C1).
/// Example: Linear(5 -> 7), alignment_numel 4, 2 ranks: weight 35 + 1 alignment + bias 7 + 1 padding = 44, 22 each.
class FlatLayout final : public ShardLayout {
 public:
  /// @throws Error if the list is empty, a parameter is a scalar, or shard_size or alignment_numel < 1. Parameters may have no elements.
  FlatLayout(std::vector<ParameterSpec> parameters, int shard_size, std::int64_t alignment_numel);

  [[nodiscard]] std::string name() const override { return "flat"; }
  [[nodiscard]] std::int64_t shard_numel() const override { return shard_numel_; }
  [[nodiscard]] std::vector<Piece> pieces(int shard_rank) const override;

  /// The pieces inside elements [begin, end) of the flat parameter, offsets relative to `begin`; the range may reach past the end.
  [[nodiscard]] std::vector<Piece> pieces_in(std::int64_t begin, std::int64_t end) const;

 private:
  std::int64_t shard_numel_ = 0;
};

}  // namespace mica::fsdp
