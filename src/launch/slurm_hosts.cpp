// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/slurm_hosts.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <future>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "mica/core/host.hpp"
#include "mica/launch/tcp_probe.hpp"

namespace mica::launch {
namespace {

/// slurmd's default port. Any port would do: a host without a listener refuses the connection.
constexpr int kPort = 6818;
constexpr std::chrono::milliseconds kConnectPatience{1000};
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

/// The host's first IPv4 address; empty if unknown.
std::string address_of(const std::string& host) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return {};
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr, text.data(), text.size());
  ::freeaddrinfo(found);
  return text.data();
}

/// Tries twice, since a packet may be lost. Empty if the host can be reached or its address is unknown.
std::string failure_of(const std::string& host) {
  const std::string ip = address_of(host);
  if (ip.empty() || connection_failure(ip, kPort, kConnectPatience).empty()) return {};
  const std::string failure = connection_failure(ip, kPort, kConnectPatience);
  return failure.empty() ? "" : fmt::format("{} from {}: {}", ip, interface_to(ip), failure);
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

std::string unreachable_slurm_host(const std::string& list) {
  const std::vector<std::string> hosts = expand_hosts(list);
  const auto self = std::ranges::find(hosts, short_name(host_name()), short_name);
  if (self == hosts.end()) return {};
  std::vector<std::string> others;
  for (const int peer : peers_of(static_cast<int>(self - hosts.begin()), static_cast<int>(hosts.size()))) {
    others.push_back(hosts[static_cast<std::size_t>(peer)]);
  }
  std::vector<std::future<std::string>> failures;
  for (const std::string& host : others) failures.push_back(std::async(std::launch::async, [host] { return failure_of(host); }));
  std::string first;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const std::string failure = failures[i].get();
    if (first.empty() && !failure.empty()) first = fmt::format("{} cannot reach {} at {}", *self, others[i], failure);
  }
  return first;
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
