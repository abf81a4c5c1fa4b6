// SPDX-License-Identifier: Apache-2.0
#include "mica/train/slow_ranks.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace mica::train {
namespace {

/// The lower median if their number is even: of two ranks the faster.
template <class Figure>
double median_of(const std::vector<RankFigures>& by_rank, Figure figure) {
  std::vector<double> values;
  for (const RankFigures& times : by_rank) values.push_back(figure(times));
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// What takes this rank longer than the median rank.
std::string difference(const RankFigures& rank, const std::vector<RankFigures>& all) {
  const double data_ms = median_of(all, [](const RankFigures& t) { return t.data_ms; });
  const double compute_ms = median_of(all, [](const RankFigures& t) { return t.compute_ms(); });
  const double saving = median_of(all, [](const RankFigures& t) { return t.saving; });
  if (rank.data_ms - data_ms > rank.compute_ms() - compute_ms)
    return fmt::format("reading data, {:.1f} ms against a median of {:.1f} ms", rank.data_ms, data_ms);
  const std::string compute = fmt::format("computing, {:.1f} ms against a median of {:.1f} ms", rank.compute_ms(), compute_ms);
  return rank.saving - saving > 0.5 ? compute + ", while it writes a checkpoint and the others have finished theirs" : compute;
}

}  // namespace

std::vector<std::string> SlowRanks::note(std::int64_t num_steps, const std::vector<RankFigures>& by_rank) {
  std::vector<std::string> lines;
  const double own_ms = median_of(by_rank, [](const RankFigures& t) { return t.own_ms(); });
  const double wait_ms = median_of(by_rank, [](const RankFigures& t) { return t.wait_ms; });
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const RankFigures& rank = by_rank[r];
    const bool is_slow = rank.own_ms() >= kRatio * own_ms && rank.own_ms() - own_ms >= kShareOfStep * rank.step_ms;
    slow_steps_[r] = is_slow ? slow_steps_[r] + num_steps : 0;
    if (!is_slow) is_named_[r] = false;
    if (slow_steps_[r] < kSteps || is_named_[r]) continue;
    is_named_[r] = true;
    lines.push_back(fmt::format(
        "rank {} ({}) is {:.1f} times as slow as the median rank in the last {} steps: {}; it waits for others {:.1f} ms of a step "
        "of {:.1f} ms, the median rank {:.1f} ms",
        r, hosts_[r], rank.own_ms() / std::max(own_ms, 1e-3), slow_steps_[r], difference(rank, by_rank), rank.wait_ms, rank.step_ms,
        wait_ms));
  }
  return lines;
}

}  // namespace mica::train
