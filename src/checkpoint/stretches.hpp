#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/fsdp/piece.hpp"

namespace mica::checkpoint {

/// Where the elements of a flattened array lie: pieces of it, each one after another at some place. Boxes along a dim
/// repeat with every index of the outer dims (a period); flat ranges lie in one period of all elements.
template <class Place>
struct Stretches {
  /// Elements [begin, end) of each period lie at a place, those of period 0 from `offset` on.
  struct Stretch {
    std::int64_t begin, end;
    Place place;
    std::int64_t offset;
  };

  std::int64_t period = 0;
  std::vector<Stretch> all;  ///< once sorted: ascending

  /// @returns false if this piece is cut along another dim than the ones before.
  [[nodiscard]] bool add(const Shape& shape, int dim, std::int64_t begin, std::int64_t end, std::int64_t offset,
                         const Place& place) {
    std::int64_t inner = 1;
    std::int64_t numel_of_period = shape.numel();
    if (dim != fsdp::Piece::kFlat) {
      const auto cut = static_cast<std::size_t>(dim);
      for (std::size_t d = cut + 1; d < shape.num_dims(); ++d) inner *= shape[d];
      numel_of_period = shape[cut] * inner;
    }
    if (all.empty()) period = numel_of_period;
    all.push_back({begin * inner, end * inner, place, offset});
    return period == numel_of_period;
  }
  void sort() { std::ranges::sort(all, {}, &Stretch::begin); }

  /// Calls visit(begin, end, place, offset) for the parts of elements [begin, end), in order. They must cover a period.
  template <class Visit>
  void for_each(std::int64_t begin, std::int64_t end, Visit visit) const {
    std::int64_t first = begin / period * period;  // of the period
    auto it = std::ranges::upper_bound(all, begin - first, {}, &Stretch::end);
    while (begin < end) {
      invariant(it != all.end(), "the stretches cover a period");
      const std::int64_t stop = std::min(first + it->end, end);
      visit(begin, stop, it->place, it->offset + first / period * (it->end - it->begin) + (begin - first - it->begin));
      begin = stop;
      if (++it == all.end()) {
        it = all.begin();
        first += period;
      }
    }
  }
};

}  // namespace mica::checkpoint
