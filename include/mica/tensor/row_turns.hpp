// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "mica/core/rounding.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica {

struct RowRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t num_rows() const { return end - begin; }
};
/// The i-th of n ranges of a table's rows. Multiples of 32 rows, for products without edges; the last ones may be shorter, or empty.
[[nodiscard]] inline RowRange row_range(std::int64_t num_rows, int n, int i) {
  const std::int64_t size = round_up(divide_up(num_rows, n), 32);
  return {std::min(num_rows, i * size), std::min(num_rows, (i + 1) * size)};
}

/// Those rows of a table [V,C].
[[nodiscard]] inline TensorView rows_of(TensorView table, const RowRange& rows) {
  const std::int64_t width = table.shape.back();
  return table.slice(rows.begin * width, rows.num_rows() * width);
}

/// Lets the ranks that share one gradient [V,C] add to it one after another. [Note: writing in turns]
/// Its rows are cut into as many ranges as there are ranks. In a round of turns each rank gets every range once, each rank beginning with
/// another one, so that no two ranks write one range at a time. The order in which they write a range is always the same, and so are the
/// bits. What a kernel writes in turns, it writes in this way, all ranks the same calls in the same order:
///   for each of its parts (at least one): for each range: take() -> enqueue the writing -> pass_on()
///   end()
/// Ranks may differ in how many parts they have.
class RowTurns {
 public:
  virtual ~RowTurns() = default;

  struct Turn {
    int range;      ///< as in row_range()
    bool is_first;  ///< no rank has written it in this call: it is overwritten, if the gradient is to be
  };
  [[nodiscard]] virtual int num_ranges() const = 0;
  /// Enqueues on `s` that it waits for its next turn.
  virtual Turn take(Stream& s) = 0;
  /// Enqueues that the range is written.
  virtual void pass_on(Stream& s) = 0;
  /// Enqueues that this rank writes no more in this call.
  virtual void end(Stream& s) = 0;
};

}  // namespace mica
