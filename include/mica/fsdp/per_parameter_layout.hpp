// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/fsdp/shard_layout.hpp"

namespace mica::fsdp {

/// Each parameter is cut along one dim: rank r holds the indices [r*c, (r+1)*c) with c = ceil(d / S), the last ranks fewer or
/// none (docs/parity.md C4, PyTorch's FSDP2). A shard holds the parts one after another, each padded to c indices. In the
/// unsharded array each parameter begins at a multiple of alignment_numel and is followed by its padding of S*c - d indices
/// (dim 0 only).
/// Example: [5, 3] on dim 0 over 2 ranks: c = 3, so 9 elements per rank; rank 1 holds rows 3 and 4 and 3 zeros.
class PerParameterLayout final : public ShardLayout {
 public:
  /// @param dims  of each parameter, the dim to cut; counted from the end when negative.
  /// @throws ConfigError naming the parameter if it has no such dim, or a dim other than 0 does not divide evenly;
  ///         Error for what ShardLayout refuses.
  PerParameterLayout(std::vector<ParameterSpec> parameters, const std::vector<int>& dims, int shard_size, std::int64_t alignment_numel);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::int64_t shard_numel() const override { return shard_numel_; }
  [[nodiscard]] std::int64_t unsharded_numel() const override { return unsharded_numel_; }
  [[nodiscard]] std::vector<Piece> pieces(int shard_rank) const override;

  /// How parameter i is cut.
  struct Cut {
    std::size_t dim = 0;
    std::int64_t chunk = 0;   ///< c, indices a rank
    std::int64_t offset = 0;  ///< of its part, in every shard
    std::int64_t numel = 0;   ///< of its part, padding included
  };
  [[nodiscard]] const Cut& cut(std::size_t i) const { return cuts_[i]; }
  /// Number of indices of dim `cut(i).dim` that the rank holds, without padding.
  [[nodiscard]] std::int64_t num_indices(std::size_t i, int shard_rank) const;

 private:
  std::vector<Cut> cuts_;
  std::int64_t shard_numel_ = 0;
  std::int64_t unsharded_numel_ = 0;
};

}  // namespace mica::fsdp
