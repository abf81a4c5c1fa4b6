// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "mica/launch/tcp_socket.hpp"

namespace mica::launch {

/// An IPv4 address of this host.
struct Address {
  std::string ip;         ///< "10.0.0.7"
  std::string interface;  ///< "eth0"
};

/// The addresses of all interfaces that are up, except loopback.
[[nodiscard]] std::vector<Address> own_addresses();

/// Answers every TCP connection, on any interface, with one line until it is destroyed.
class Beacon {
 public:
  /// @throws IoError
  explicit Beacon(std::string answer);
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;
  [[nodiscard]] int port() const { return listener_.port; }

 private:
  Listener listener_;
  std::jthread thread_;  // last, since it uses the other members
};

/// Whether a Beacon with this answer can be reached at addresses of its host, which are tried at once.
/// @param timeout  for the connections, and for each answer
/// @returns for each address: empty if so; else the failure: "no answer within 1.5 s", "No route to host", "another process answers there"
[[nodiscard]] std::vector<std::string> probe(const std::vector<std::string>& ips, int port, const std::string& answer,
                                             std::chrono::milliseconds timeout);

/// The interface used for packets to this address: "eth0 (10.0.0.6)", or "no interface".
[[nodiscard]] std::string interface_to(const std::string& ip);

}  // namespace mica::launch
