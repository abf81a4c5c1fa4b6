// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace mica::report {

/// The stretch, of `num_buckets` with equal length, that holds the i-th of `num` rows. Rows beyond `num`, which were added while the file
/// was read, go into the last stretch; there is one even if `num` is 0.
inline std::size_t bucket_of(std::int64_t i, std::int64_t num, std::int64_t num_buckets) {
  return static_cast<std::size_t>(i < num ? i * num_buckets / num : std::max<std::int64_t>(0, num_buckets - 1));
}

/// Thins out a long series: keeps the rows with the lowest and the highest value of each stretch. If a stretch is at most a pixel wide, the
/// curve looks as if all rows were drawn. A short series is kept whole.
template <std::size_t N>
class ThinnedRows {
 public:
  using Values = std::array<double, N>;

  /// @param num_rows  as many rows as will be added, or a few more
  ThinnedRows(std::int64_t num_rows, std::int64_t num_stretches)
      : num_rows_(num_rows), num_stretches_(num_rows <= 2 * num_stretches ? num_rows : num_stretches) {}

  /// @param key  the value to compare; a row with NaN is kept only if its stretch has no other
  void add(double key, const Values& values) {
    const std::size_t bucket = bucket_of(next_, num_rows_, num_stretches_);
    if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
    Bucket& b = buckets_[bucket];
    const Entry entry{next_++, key, values};
    if (!b.lowest || std::isnan(b.lowest->key) || key < b.lowest->key) b.lowest = entry;
    if (!b.highest || std::isnan(b.highest->key) || key > b.highest->key) b.highest = entry;
  }

  /// The rows that are kept, in order.
  [[nodiscard]] std::vector<Values> rows() const {
    std::vector<Values> rows;
    for (const Bucket& b : buckets_) {
      if (!b.lowest) continue;
      const bool lowest_first = b.lowest->index <= b.highest->index;
      rows.push_back((lowest_first ? b.lowest : b.highest)->values);
      if (b.lowest->index != b.highest->index) rows.push_back((lowest_first ? b.highest : b.lowest)->values);
    }
    return rows;
  }

 private:
  struct Entry {
    std::int64_t index = 0;
    double key = 0;
    Values values{};
  };
  struct Bucket {
    std::optional<Entry> lowest, highest;
  };
  std::int64_t num_rows_, num_stretches_;
  std::int64_t next_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace mica::report
