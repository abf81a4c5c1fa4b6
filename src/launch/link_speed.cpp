// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <sstream>

#include "mica/launch/checks.hpp"
#include "mica/mpi/session.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr int kBytes = 128 << 10, kTimes = 3;
/// Busy cores make a fast link look slow: such links get more turns, for this long.
constexpr int kMaxTimes = 30;
constexpr double kMaxS = 0.3;
/// Nodes behind different switches differ by less, and a healthy cluster's links are faster than this even under load.
constexpr double kLinkIsSlower = 8, kSlowMbS = 100;
/// Of the fastest link: slower than Fast Ethernet.
constexpr double kUselessMbS = 8;

/// How long kBytes take from the node before this one. All nodes send to the next one at once. @returns the best time in seconds
double receive_s(const mpi::Communicator& leaders) {
  const int next = (leaders.rank() + 1) % leaders.num_ranks(), previous = (leaders.rank() + leaders.num_ranks() - 1) % leaders.num_ranks();
  const std::vector<char> sent(kBytes);
  std::vector<char> received(kBytes);
  double best = std::numeric_limits<double>::infinity();
  Clock::time_point start;
  for (int time = 0;; ++time) {
    leaders.barrier();
    const Clock::time_point begin = Clock::now();
    MPI_Request sending = MPI_REQUEST_NULL;
    mpi::check(MPI_Isend(sent.data(), kBytes, MPI_BYTE, next, 0, leaders.get(), &sending), "MPI_Isend");
    mpi::check(MPI_Recv(received.data(), kBytes, MPI_BYTE, previous, 0, leaders.get(), MPI_STATUS_IGNORE), "MPI_Recv");
    const double s = seconds_since(begin);
    mpi::check(MPI_Wait(&sending, MPI_STATUS_IGNORE), "MPI_Wait");
    if (time == 0) {  // makes the connections
      start = Clock::now();
      continue;
    }
    best = std::min(best, s);
    if (time < kTimes) continue;
    std::array<double, 2> slowest{best, seconds_since(start)};
    mpi::check(MPI_Allreduce(MPI_IN_PLACE, slowest.data(), 2, MPI_DOUBLE, MPI_MAX, leaders.get()), "MPI_Allreduce");
    if (kBytes / slowest[0] * 1e-6 >= kSlowMbS || slowest[1] >= kMaxS || time == kMaxTimes) return best;
  }
}

std::string look_at_links(const mpi::Communicator& world) {
  const bool is_leader = world.split_node().rank() == 0;
  const mpi::Communicator leaders = world.split(is_leader ? 0 : 1, world.rank());
  if (!is_leader || leaders.num_ranks() == 1) return "";
  return fmt::format("{}", kBytes / receive_s(leaders) * 1e-6);
}

/// MB/s from the node before each one, in the order of their lowest ranks.
struct Link {
  const RankWords* to;
  double mb_s;
};

std::vector<Finding> slow_links(const std::vector<RankWords>& all) {
  std::vector<Link> links;
  for (const RankWords& each : all) {
    double mb_s = 0;
    if (std::istringstream(each.words) >> mb_s) links.push_back({&each, mb_s});
  }
  if (links.size() < 2) return {};
  const double best = std::ranges::max_element(links, {}, &Link::mb_s)->mb_s;
  const auto is_slow = [&](const Link& link) { return link.mb_s < kSlowMbS && link.mb_s * kLinkIsSlower < best; };
  std::vector<Finding> findings;
  for (std::size_t i = 0; i < links.size(); ++i) {
    // Two neighbouring links that are slow have one node in common.
    const Link &in = links[i], &out = links[(i + 1) % links.size()];
    if (!is_slow(in) || !is_slow(out)) continue;
    findings.push_back(
        {Finding::Kind::warning,
         fmt::format("the network link of {} (rank {}) carries {:.3g} MB/s in and {:.3g} MB/s out, where other nodes reach {:.3g}: "
                     "every step will wait for it; look at its cable, its switch port and the speed of its interface (ethtool), "
                     "or leave it out (Slurm: --exclude={})",
                     in.to->host, in.to->rank, in.mb_s, out.mb_s, best, in.to->host)});
  }
  if (best < kUselessMbS) {
    findings.push_back({Finding::Kind::warning,
                        fmt::format("no node receives more than {:.3g} MB/s from another one: is MPI on the right network? Open MPI: "
                                    "--mca btl_tcp_if_include INTERFACE",
                                    best)});
  }
  return findings;
}

}  // namespace

Check link_speed(const mpi::Communicator& world) {
  return {.name = "link speed", .look = [&world] { return look_at_links(world); }, .judge = slow_links, .asks_twice = true};
}

}  // namespace mica::launch
