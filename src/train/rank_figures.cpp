// SPDX-License-Identifier: Apache-2.0
#include "mica/train/rank_figures.hpp"

#include <algorithm>
#include <cmath>

namespace mica::train {

std::vector<RankFigures> gather_rank_figures(const mpi::Communicator& world, const RankFigures& mine) {
  const auto millionths = [](double value) { return std::llround(value * 1e6); };
  std::vector<RankFigures> all;
  for (const std::vector<std::int64_t>& numbers : world.gather_numbers(
           {millionths(mine.step_ms), millionths(mine.wait_ms), millionths(mine.data_ms), millionths(mine.saving), mine.peak_bytes})) {
    const auto value = [&](std::size_t i) { return static_cast<double>(numbers[i]) * 1e-6; };
    all.push_back({.step_ms = value(0), .wait_ms = value(1), .data_ms = value(2), .saving = value(3), .peak_bytes = numbers[4]});
  }
  return all;
}

RankSkew rank_skew(const std::vector<RankFigures>& ranks) {
  std::vector<double> times;
  for (const RankFigures& rank : ranks) times.push_back(rank.own_ms());
  const auto slowest = std::ranges::max_element(times);
  RankSkew skew{.max_ms = *slowest, .slowest_rank = static_cast<int>(slowest - times.begin())};
  std::ranges::sort(times);
  skew.min_ms = times.front();
  const std::size_t half = times.size() / 2;
  skew.median_ms = times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
  return skew;
}

}  // namespace mica::train
