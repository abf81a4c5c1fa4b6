// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/tcp_probe.hpp"

#include <array>
#include <utility>

#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>

#include "mica/core/error.hpp"

#include "ipv4.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::vector<Address> addresses(bool with_loopback) {
  std::vector<Address> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const bool is_loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_UP) == 0) continue;
    if (is_loopback && !with_loopback) continue;
    found.push_back({text_of(*reinterpret_cast<const sockaddr_in*>(each->ifa_addr)), each->ifa_name});
  }
  ::freeifaddrs(list);
  return found;
}

/// What is wrong with the line that comes over a connection; empty: nothing.
std::string wrong_answer(int socket, const std::string& answer, milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string line;
  while (line.find('\n') == std::string::npos && line.size() <= answer.size()) {
    if (!is_ready(socket, POLLIN, deadline)) {
      return fmt::format("no answer within {:g} s", std::chrono::duration<double>(timeout).count());
    }
    std::array<char, 256> part{};
    const ssize_t bytes = ::recv(socket, part.data(), part.size(), 0);
    if (bytes <= 0) break;
    line.append(part.data(), static_cast<std::size_t>(bytes));
  }
  return line == answer + "\n" ? "" : "another process answers there";
}

}  // namespace

std::vector<Address> own_addresses() { return addresses(false); }

Beacon::Beacon(std::string answer) : listener_(Listener::open()) {
  thread_ = std::jthread([this, answer = std::move(answer) + "\n"](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!is_ready(listener_.socket.get(), POLLIN, Clock::now() + milliseconds(50))) continue;
      const UniqueFd caller = listener_.accept();
      if (caller) static_cast<void>(::send(caller.get(), answer.data(), answer.size(), MSG_NOSIGNAL));
    }
  });
}

std::vector<std::string> probe(const std::vector<std::string>& ips, int port, const std::string& answer, milliseconds timeout) {
  std::vector<std::string> failures;
  for (const Connection& each : connect_to_all(ips, port, timeout)) {
    failures.push_back(each.failure.empty() ? wrong_answer(each.socket.get(), answer, timeout) : each.failure);
  }
  return failures;
}

std::string interface_to(const std::string& ip) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // connecting a UDP socket sends nothing
  const sockaddr_in address = address_of(ip, 9);
  sockaddr_in own{};
  socklen_t length = sizeof own;
  if (!socket || ::connect(socket.get(), as_sockaddr(address), sizeof address) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return "no interface";
  }
  std::string own_ip = text_of(own);
  for (const Address& each : addresses(true)) {
    if (each.ip == own_ip) return fmt::format("{} ({})", each.interface, own_ip);
  }
  return own_ip;
}

}  // namespace mica::launch
