// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/shard_layout.hpp"

#include <algorithm>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

namespace mica::fsdp {

ShardLayout::ShardLayout(std::vector<ParameterSpec> parameters, int shard_size)
    : parameters_(std::move(parameters)), shard_size_(shard_size) {
  require(shard_size >= 1, "a shard layout needs at least one shard rank, got {}", shard_size);
  require(!parameters_.empty(), "a flat parameter needs at least one parameter, got an empty list");
  for (const ParameterSpec& p : parameters_) {
    require(p.shape.num_dims() > 0, "parameter {} is a scalar: sharding needs at least one dim; give it shape [1] or ignore it", p.name);
  }
}

std::int64_t ShardLayout::param_numel() const {
  std::int64_t numel = 0;
  for (const ParameterSpec& p : parameters_) numel += p.shape.numel();
  return numel;
}

FlatLayout::FlatLayout(std::vector<ParameterSpec> parameters, int shard_size, std::int64_t alignment_numel)
    : ShardLayout(std::move(parameters), shard_size) {
  require(alignment_numel >= 1, "alignment_numel must be at least 1, got {}", alignment_numel);
  std::int64_t end = 0;
  for (const ParameterSpec& p : this->parameters()) {
    const std::int64_t begin = round_up(end, alignment_numel);
    if (begin > end) gaps_.push_back({end, begin});
    begins_.push_back(begin);
    end = begin + p.shape.numel();
  }
  const std::int64_t padded = round_up(end, shard_size);
  if (padded > end) gaps_.push_back({end, padded});
  shard_numel_ = padded / shard_size;
}

std::vector<Piece> FlatLayout::pieces_in(std::int64_t begin, std::int64_t end) const {
  std::vector<Piece> found;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const ParameterSpec& p = parameters()[i];
    const std::int64_t first = std::max(begin, begins_[i]);
    const std::int64_t last = std::min(end, begins_[i] + p.shape.numel());
    if (first >= last) continue;
    found.push_back(make_piece(i, p.shape, first - begins_[i], last - begins_[i], first - begin));
  }
  return found;
}

std::vector<Piece> FlatLayout::pieces(int shard_rank) const {
  return pieces_in(shard_rank * shard_numel_, (shard_rank + 1) * shard_numel_);
}

}  // namespace mica::fsdp
