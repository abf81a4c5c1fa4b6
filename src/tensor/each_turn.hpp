// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/tensor/kernels.hpp"

namespace mica {

/// Writes each range of a table of `num_rows` rows once, in turns ([Note: writing in turns]): body(range, rows, mode) enqueues that on `s`.
/// @param mode  of the call's first writing
template <class Body>
void for_each_turn(Stream& s, RowTurns& turns, std::int64_t num_rows, Write mode, const Body& body) {
  for (int i = 0; i < turns.num_ranges(); ++i) {
    const RowTurns::Turn turn = turns.take(s);
    body(turn.range, row_range(num_rows, turns.num_ranges(), turn.range), turn.is_first ? mode : Write::accumulate);
    turns.pass_on(s);
  }
}

}  // namespace mica
