// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <sstream>

#include "mica/launch/checks.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// A throttled or busy node is several times slower; ranks that share cores of a healthy node stay below this (src/launch/README.md).
constexpr double kMuchSlower = 3;

/// ms of three tries. Other processes may have had the core for a moment, and a node that is slow is slow each time: so the best of a node
/// is compared with what the others usually take.
struct Times {
  double best = std::numeric_limits<double>::infinity();
  double usual = std::numeric_limits<double>::infinity();  ///< the median
};

Times times_of(const std::function<void()>& work) {
  std::array<double, 3> ms{};
  for (double& each : ms) {
    const Clock::time_point begin = Clock::now();
    work();
    each = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }
  std::ranges::sort(ms);
  return {ms[0], ms[1]};
}

/// One thread and no library: the same instructions on every node.
Times product_times() {
  constexpr int kWidth = 192, kTimes = 12;
  const std::vector<float> a(kWidth * kWidth, 1.0F), b(kWidth * kWidth, 0.5F);
  std::vector<float> c(kWidth * kWidth);
  const Times times = times_of([&] {
    for (int time = 0; time < kTimes; ++time) {
      for (int row = 0; row < kWidth; ++row) {
        for (int k = 0; k < kWidth; ++k) {
          const float factor = a[static_cast<std::size_t>(row * kWidth + k)];
          for (int column = 0; column < kWidth; ++column) {
            c[static_cast<std::size_t>(row * kWidth + column)] += factor * b[static_cast<std::size_t>(k * kWidth + column)];
          }
        }
      }
    }
  });
  return c[0] > 0 ? times : Times{};  // so that the compiler keeps the product
}

Times copy_times() {
  constexpr std::size_t kBytes = 16 << 20;
  constexpr int kTimes = 3;
  std::vector<char> from(kBytes, 'a'), to(kBytes, 'b');  // written, so that the pages are resident
  const Times times = times_of([&] {
    for (int time = 0; time < kTimes; ++time) {
      from[static_cast<std::size_t>(time)] = static_cast<char>(time);
      std::memcpy(to.data(), from.data(), kBytes);
    }
  });
  return to[kTimes - 1] == kTimes - 1 ? times : Times{};
}

struct Speed {
  std::string host;
  int rank = 0;  ///< the node's lowest one
  int num_ranks = 0;
  Times product, copy;
};

/// The lowest times of each node's ranks: a rank may have had to wait for a core.
std::vector<Speed> speeds_of(const std::vector<RankWords>& all) {
  const auto lower = [](Times& times, const Times& other) {
    times = {std::min(times.best, other.best), std::min(times.usual, other.usual)};
  };
  std::map<std::string, std::size_t> numbers;
  std::vector<Speed> speeds;
  for (const RankWords& each : all) {
    Times product, copy;
    std::istringstream(each.words) >> product.best >> product.usual >> copy.best >> copy.usual;
    const auto [at, is_new] = numbers.try_emplace(each.node, speeds.size());
    if (is_new) speeds.push_back({each.host, each.rank, 0, {}, {}});
    ++speeds[at->second].num_ranks;
    lower(speeds[at->second].product, product);
    lower(speeds[at->second].copy, copy);
  }
  return speeds;
}

/// The median of the other nodes' usual times; the lower one of an even number. Copies of nodes with another number of ranks, which share
/// the node's memory, say nothing. Infinite if there are no others.
double usual_without(const std::vector<Speed>& speeds, std::size_t without, Times Speed::*times) {
  const auto is_comparable = [&](const Speed& other) { return times == &Speed::product || other.num_ranks == speeds[without].num_ranks; };
  std::vector<double> usual;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    if (i != without && is_comparable(speeds[i])) usual.push_back((speeds[i].*times).usual);
  }
  if (usual.empty()) return std::numeric_limits<double>::infinity();
  std::ranges::sort(usual);
  return usual[(usual.size() - 1) / 2];
}

std::vector<Finding> slow_nodes(const std::vector<RankWords>& all) {
  const std::vector<Speed> speeds = speeds_of(all);
  std::vector<Finding> findings;
  if (speeds.size() < 2) return findings;
  const auto compare = [&](std::size_t node, Times Speed::*times, const char* work, const char* causes) {
    const double theirs = (speeds[node].*times).best, others = usual_without(speeds, node, times);
    if (theirs < kMuchSlower * others) return;
    findings.push_back({Finding::Kind::warning,
                        fmt::format("{} (rank {}) took {:.0f} ms for {} that the other nodes do in {:.0f} ms: every step will wait for it; "
                                    "look for {}, or leave it out (Slurm: --exclude={})",
                                    speeds[node].host, speeds[node].rank, theirs, work, others, causes, speeds[node].host)});
  };
  for (std::size_t node = 0; node < speeds.size(); ++node) {
    compare(node, &Speed::product, "products", "other processes on it, a limit on its CPUs, a low clock (heat, power cap)");
    compare(node, &Speed::copy, "copies of memory", "other processes on it, missing or failing memory modules");
  }
  return findings;
}

}  // namespace

Check node_speed() {
  return {.name = "node speed",
          .look =
              [] {
                const Times product = product_times(), copy = copy_times();
                return fmt::format("{} {} {} {}", product.best, product.usual, copy.best, copy.usual);
              },
          .judge = slow_nodes,
          .asks_twice = true};
}

}  // namespace mica::launch
