// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/per_parameter_layout.hpp"

#include <algorithm>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

#include "extent.hpp"

namespace mica::fsdp {
namespace {

std::size_t checked_dim(const ParameterSpec& p, int dim, int shard_size) {
  const auto num_dims = static_cast<int>(p.shape.num_dims());
  require<ConfigError>(dim >= -num_dims && dim < num_dims, "parameter {} {} is to be sharded on dim {}, expected {} to {}", p.name,
                       p.shape.to_string(), dim, -num_dims, num_dims - 1);
  const auto d = static_cast<std::size_t>(dim < 0 ? dim + num_dims : dim);
  require<ConfigError>(d == 0 || p.shape[d] % shard_size == 0,
                       "parameter {} {} is to be sharded on dim {}, whose {} indices do not divide evenly over {} ranks: "
                       "only dim 0 may be uneven",
                       p.name, p.shape.to_string(), dim, p.shape[d], shard_size);
  return d;
}

}  // namespace

PerParameterLayout::PerParameterLayout(std::vector<ParameterSpec> parameters, const std::vector<int>& dims, int shard_size,
                                       std::int64_t alignment_numel)
    : ShardLayout(std::move(parameters), shard_size) {
  invariant(dims.size() == this->parameters().size(), "one dim a parameter");
  require(alignment_numel >= 1, "alignment_numel must be at least 1, got {}", alignment_numel);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const ParameterSpec& p = this->parameters()[i];
    const std::size_t dim = checked_dim(p, dims[i], shard_size);
    const std::int64_t chunk = divide_up(p.shape[dim], shard_size);
    const std::int64_t outer = extent(p.shape, 0, dim);
    const std::int64_t inner = extent(p.shape, dim + 1, p.shape.num_dims());
    cuts_.push_back({.dim = dim, .chunk = chunk, .offset = shard_numel_, .numel = outer * chunk * inner});
    shard_numel_ += cuts_.back().numel;
    const std::int64_t begin = round_up(unsharded_numel_, alignment_numel);
    if (begin > unsharded_numel_) gaps_.push_back({unsharded_numel_, begin});
    begins_.push_back(begin);
    unsharded_numel_ = begin + shard_size * cuts_.back().numel;
    const std::int64_t end = begin + p.shape.numel();
    if (unsharded_numel_ > end) gaps_.push_back({end, unsharded_numel_});
  }
  // Padded so that it divides evenly among some of the ranks (resharding after forward).
  const std::int64_t padded = round_up(unsharded_numel_, shard_size);
  if (padded > unsharded_numel_) gaps_.push_back({unsharded_numel_, padded});
  unsharded_numel_ = padded;
  if (dims.size() == 1 && cuts_[0].dim == 0) return;  // one parameter cut on dim 0 is contiguous in the gathered array
  for (int r = 0; r < shard_size; ++r) {
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      const Cut& c = cuts_[i];
      const Shape& shape = this->parameters()[i].shape;
      const std::int64_t outer = extent(shape, 0, c.dim);
      const std::int64_t block = c.numel / std::max<std::int64_t>(outer, 1);
      rearrangement_.push_back({.src = r * shard_numel_ + c.offset,
                                .dst = begins_[i] + r * block,
                                .numel = block,
                                .count = outer,
                                .src_stride = block,
                                .dst_stride = block * shard_size});
    }
  }
}

std::string PerParameterLayout::name() const {
  std::string text = "per_parameter";
  char separator = ' ';
  for (const Cut& c : cuts_) {
    text += separator + std::to_string(c.dim);
    separator = ',';
  }
  return text;
}

std::int64_t PerParameterLayout::num_indices(std::size_t i, int shard_rank) const {
  const Cut& c = cuts_[i];
  return std::clamp<std::int64_t>(parameters()[i].shape[c.dim] - shard_rank * c.chunk, 0, c.chunk);
}

std::vector<Piece> PerParameterLayout::pieces(int shard_rank) const {
  std::vector<Piece> found;
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    const Shape& shape = parameters()[i].shape;
    const Cut& c = cuts_[i];
    const std::int64_t begin = shard_rank * c.chunk, end = begin + num_indices(i, shard_rank);
    const std::int64_t row = extent(shape, 1, shape.num_dims());
    // Rows are contiguous: a flat range.
    const Piece piece = c.dim == 0 ? make_piece(i, shape, begin * row, end * row, c.offset)
                                   : make_piece(i, shape, begin, end, c.offset, static_cast<int>(c.dim));
    if (!piece.empty()) found.push_back(piece);
  }
  return found;
}

}  // namespace mica::fsdp
