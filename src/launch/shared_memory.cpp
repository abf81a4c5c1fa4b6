// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <sstream>

#include <sys/statvfs.h>

#include "mica/launch/checks.hpp"

namespace mica::launch {
namespace {

constexpr double kMiB = 1 << 20;
/// Open MPI makes a file of 4 MiB in /dev/shm for each rank, and uses its pages as it needs them. If it cannot make the file, it prints
/// a long warning and uses TCP inside the node; if no memory is left for a page, ranks die of SIGBUS.
constexpr double kLeastBytesPerRank = 4 * kMiB;
/// After MPI_Init, a part of that is already in use.
constexpr double kLeastFreeBytesPerRank = 1 * kMiB;

}  // namespace

Check shared_memory() {
  const auto look = [] {
    struct statvfs place {};
    if (::statvfs("/dev/shm", &place) != 0) return std::string("0 0");
    const auto unit = static_cast<double>(place.f_frsize);
    return fmt::format("{} {}", unit * static_cast<double>(place.f_blocks), unit * static_cast<double>(place.f_bavail));
  };
  const auto judge = [](const std::vector<RankWords>& all) {
    std::map<std::string, int> ranks_of_node;
    for (const RankWords& each : all) ++ranks_of_node[each.node];
    std::vector<Finding> findings;
    for (const RankWords& each : all) {
      const int ranks = std::exchange(ranks_of_node[each.node], 0);  // once per node
      double bytes = 0, free_bytes = 0;
      std::istringstream(each.words) >> bytes >> free_bytes;
      const bool is_enough = bytes >= ranks * kLeastBytesPerRank && free_bytes >= ranks * kLeastFreeBytesPerRank;
      if (ranks < 2 || bytes == 0 || is_enough) continue;
      findings.push_back(
          {Finding::Kind::warning,
           fmt::format("/dev/shm of {} has {:.1f} MiB, {:.1f} of them free, for {} ranks; MPI needs about {:.0f} MiB: it may use "
                       "TCP inside the node, or fail later; make it larger (containers: --shm-size), or delete old files "
                       "there",
                       each.host, bytes / kMiB, free_bytes / kMiB, ranks, ranks * kLeastBytesPerRank / kMiB)});
    }
    return findings;
  };
  return {.name = "shared memory", .look = look, .judge = judge};
}

}  // namespace mica::launch
