// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/fsdp/piece.hpp"

namespace mica::checkpoint {

/// Maps the elements of a flattened array to places: each piece of the array is contiguous at its place. Pieces that are cut along a
/// dim repeat with every index of the outer dims (a period); for flat ranges, one period is the whole array.
template <class Place>
struct Stretches {
  struct Stretch {
    fsdp::Run run;  ///< of the piece in the first period
    Place place;
  };

  std::int64_t period = 0;
  std::vector<Stretch> all;  ///< once sorted: ascending

  /// @returns false if this piece is cut along another dim than the ones before.
  [[nodiscard]] bool add(const fsdp::Piece& piece, const Place& place) {
    if (all.empty()) period = piece.period;
    all.push_back({piece.run(0), place});
    return period == piece.period;
  }
  void sort() {
    std::ranges::sort(all, {}, [](const Stretch& s) { return s.run.begin; });
  }

  /// Calls visit(Run, place) for the parts of elements [begin, end), in order. The pieces must cover a period.
  template <class Visit>
  void for_each(std::int64_t begin, std::int64_t end, Visit visit) const {
    std::int64_t first = begin / period * period;  // of the period
    auto it = std::ranges::upper_bound(all, begin - first, {}, [](const Stretch& s) { return s.run.end; });
    while (begin < end) {
      invariant(it != all.end(), "the stretches cover a period");
      const fsdp::Run& run = it->run;
      const std::int64_t stop = std::min(first + run.end, end);
      visit(fsdp::Run{begin, stop, run.offset + first / period * run.numel() + (begin - first - run.begin)}, it->place);
      begin = stop;
      if (++it == all.end()) {
        it = all.begin();
        first += period;
      }
    }
  }
};

}  // namespace mica::checkpoint
