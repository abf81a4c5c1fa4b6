// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>

#include "mica/launch/checks.hpp"

namespace mica::launch {
namespace {

/// Far more than the time between the ranks' looks, even if they wait for a core. Run locks expire after 60 s.
constexpr double kMostSeconds = 60;

std::string apart(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} minutes", seconds / 60);
  return fmt::format("{:.1f} hours", seconds / 3600);
}

}  // namespace

Check clocks() {
  const auto look = [] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::to_string(std::chrono::duration<double>(now).count());
  };
  const auto judge = [](const std::vector<RankWords>& all) -> std::vector<Finding> {
    std::vector<double> sorted;
    for (const RankWords& each : all) sorted.push_back(std::stod(each.words));
    const std::vector<double> times = sorted;
    std::ranges::sort(sorted);
    // Of an even number the lower one: so that of two hosts, each is named.
    const double median = sorted[(sorted.size() - 1) / 2];
    const auto from_median = [&](double time) { return std::abs(time - median); };
    const auto outlier = std::ranges::max_element(times, {}, from_median);
    if (from_median(*outlier) < kMostSeconds) return {};
    const auto typical = std::ranges::find(times, median);
    return {{Finding::Kind::warning,
             fmt::format("the clock of {} is {} {} that of {}: time limits, and ages of files and locks, will be wrong; set it "
                         "(NTP, chrony)",
                         name_of(all[static_cast<std::size_t>(outlier - times.begin())]), apart(from_median(*outlier)),
                         *outlier > median ? "ahead of" : "behind", name_of(all[static_cast<std::size_t>(typical - times.begin())]))}};
  };
  return {.name = "clocks", .look = look, .judge = judge};
}

}  // namespace mica::launch
