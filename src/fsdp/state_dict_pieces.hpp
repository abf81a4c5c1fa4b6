#pragma once

#include <span>

#include "state_dict_items.hpp"

namespace mica::fsdp {

/// Rows [begin, end) of an item, which `source` (a world rank) has in its dict number `part`.
struct RowsAt {
  std::int64_t item;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t source;
  std::int64_t part;
};

/// What this rank's dicts have of the items. @throws ConfigError naming a key of another shape or dtype.
[[nodiscard]] std::vector<RowsAt> rows_in(const StateItems& items, std::span<const StateDict> parts, int rank);

/// Which rows come from where, so that every row of every item comes once: from the dict that reaches furthest, then from
/// the lowest rank. Items of which nobody has anything are left out and named in `missing`.
/// @param found  of all ranks.  @throws ConfigError naming parameter and rows that only some of it is there for.
[[nodiscard]] std::vector<RowsAt> choose_rows(const StateItems& items, std::vector<RowsAt> found,
                                              std::vector<std::string>& missing);

/// Brings the chosen rows to all ranks, one broadcast for each unit and source, and takes this rank's part.
/// @collective over the world, with equal arguments but for `parts`
void exchange_rows(const StateItems& items, const std::vector<RowsAt>& chosen, std::span<const StateDict> parts);

/// Writes rows of an item, [src.numel()] elements from row `begin` on, where this rank stores them.
void store_rows(const StateItems& items, const StateItem& item, std::int64_t begin, ConstTensorView src);

/// @throws ConfigError unless a tensor of a dict can be (a part of) the item.
void check_tensor(const StateItem& item, const StateTensor& tensor);

}  // namespace mica::fsdp
