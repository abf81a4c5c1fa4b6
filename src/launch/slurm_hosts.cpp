// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/slurm_hosts.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include <fmt/ranges.h>
#include <netdb.h>

#include "mica/core/error.hpp"
#include "mica/core/host.hpp"
#include "mica/launch/tcp_probe.hpp"

#include "ipv4.hpp"

namespace mica::launch {
namespace {

/// Of each look: slurmd's default port, and that of SSH, which few firewalls block between the nodes of a cluster. A host without a
/// listener refuses the connection, which proves as much.
constexpr std::array kPorts{6818, 22, 6818};
constexpr std::chrono::milliseconds kNamePatience{1000};
/// A packet may be lost, also one with a refusal. And while a lost host's hardware address is looked for, the kernel is silent for three
/// seconds and then once says "No route to host": two looks of three are silent.
constexpr int kSilentTimes = 2;
constexpr int kFew = 64;

/// "08-10,12" between `before` and `after`.
void append_range(const std::string& before, const std::string& ranges, const std::string& after, std::vector<std::string>& hosts) {
  for (std::size_t at = 0; at <= ranges.size();) {
    const std::size_t end = std::min(ranges.find(',', at), ranges.size());
    const std::string range = ranges.substr(at, end - at);
    const std::size_t dash = range.find('-');
    const std::string first = range.substr(0, dash), last = dash == std::string::npos ? first : range.substr(dash + 1);
    for (int number = std::atoi(first.c_str()); number <= std::atoi(last.c_str()); ++number) {
      hosts.push_back(fmt::format("{}{:0{}}{}", before, number, first.size(), after));
    }
    at = end + 1;
  }
}

std::vector<std::string> addresses_of(const std::string& host) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return {};
  std::vector<std::string> ips;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    ips.push_back(text_of(*reinterpret_cast<const sockaddr_in*>(each->ai_addr)));
  }
  ::freeaddrinfo(found);
  return ips;
}

/// An address of a host, and what became of the connections to it.
struct Place {
  std::string host, ip;
  bool answers = false;
  int times_silent = 0;
  std::string failure;
};

/// Names that are not looked up in time are left out.
std::vector<Place> places_of(const std::vector<std::string>& hosts) {
  const auto deadline = std::chrono::steady_clock::now() + kNamePatience;
  std::vector<Place> places;
  for (const std::string& host : hosts) {
    if (std::chrono::steady_clock::now() > deadline) break;
    for (const std::string& ip : addresses_of(host)) places.push_back({host, ip});
  }
  return places;
}

/// Connects to the places of which it is not known yet whether they answer.
void look_again(std::vector<Place>& places, int port) {
  std::vector<Place*> tried;
  std::vector<std::string> ips;
  for (Place& each : places) {
    if (each.answers || each.times_silent == kSilentTimes) continue;
    tried.push_back(&each);
    ips.push_back(each.ip);
  }
  const std::vector<Connection> made = connect_to_all(ips, port, kConnectPatience);
  for (std::size_t i = 0; i < tried.size(); ++i) {
    tried[i]->answers = made[i].failure.empty() || made[i].failure == errno_text(ECONNREFUSED);
    tried[i]->times_silent += made[i].is_silent ? 1 : 0;
    tried[i]->failure = made[i].failure;
  }
}

std::string short_name(const std::string& host) { return host.substr(0, host.find('.')); }

}  // namespace

std::vector<std::string> expand_hosts(const std::string& list) {
  std::vector<std::string> hosts;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t open = list.find('[', at), comma = std::min(list.find(',', at), list.size());
    const std::size_t close = list.find(']', open);
    if (open > comma || close == std::string::npos) {
      hosts.push_back(list.substr(at, comma - at));
      at = comma + 1;
      continue;
    }
    const std::size_t end = std::min(list.find(',', close), list.size());
    append_range(list.substr(at, open - at), list.substr(open + 1, close - open - 1), list.substr(close + 1, end - close - 1), hosts);
    at = end + 1;
  }
  return hosts;
}

UnreachableHost unreachable_slurm_host(const std::string& list) {
  const std::vector<std::string> hosts = expand_hosts(list);
  const auto self = std::ranges::find(hosts, short_name(host_name()), short_name);
  if (self == hosts.end()) return {};
  std::vector<std::string> others;
  for (const int peer : peers_of(static_cast<int>(self - hosts.begin()), static_cast<int>(hosts.size()))) {
    others.push_back(hosts[static_cast<std::size_t>(peer)]);
  }
  std::vector<Place> places = places_of(others);
  for (const int port : kPorts) look_again(places, port);
  UnreachableHost found;
  for (const std::string& host : others) {
    std::vector<std::string> failures;
    bool answers = false, is_silent = true;
    for (const Place& each : places) {
      if (each.host != host) continue;
      answers = answers || each.answers;
      is_silent = is_silent && each.times_silent == kSilentTimes;
      failures.push_back(fmt::format("{} from {}: {}", each.ip, interface_to(each.ip), each.failure));
    }
    if (answers || failures.empty() || (!found.pair.empty() && !is_silent)) continue;
    found = {fmt::format("{} cannot reach {} at {}", *self, host, fmt::join(failures, "; ")), is_silent};
    if (is_silent) break;
  }
  return found;
}

std::set<int> peers_of(int own, int n) {
  std::set<int> peers;
  for (int distance = 1; distance < n; distance = n <= kFew ? distance + 1 : 2 * distance) {
    peers.insert((own + distance) % n);
    peers.insert((own - distance + n) % n);
  }
  peers.erase(own);
  return peers;
}

}  // namespace mica::launch
