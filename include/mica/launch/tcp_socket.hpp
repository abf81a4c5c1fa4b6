// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "mica/core/unique_fd.hpp"

namespace mica::launch {

/// A TCP port of this host, on all its IPv4 interfaces. Never blocks.
struct Listener {
  UniqueFd socket;
  int port = 0;
  /// @throws IoError
  [[nodiscard]] static Listener open();
  /// The next connection, as a non-blocking socket; null if there is none.
  [[nodiscard]] UniqueFd accept() const;
};

/// How long a host of the same cluster may take to answer a connection.
inline constexpr std::chrono::milliseconds kConnectPatience{1000};

struct Connection {
  UniqueFd socket;         ///< non-blocking
  std::string failure;     ///< empty if connected: "Connection refused", "no answer within 1.5 s"
  bool is_silent = false;  ///< failed since nothing answered in time, not even with a refusal
};
[[nodiscard]] Connection connect_to(const std::string& ip, int port, std::chrono::milliseconds timeout);
/// The same to several addresses at once. @returns in their order
[[nodiscard]] std::vector<Connection> connect_to_all(const std::vector<std::string>& ips, int port, std::chrono::milliseconds timeout);

/// Waits until the socket is readable (events: POLLIN) or connected (POLLOUT). @returns false at the deadline
[[nodiscard]] bool is_ready(int socket, short events, std::chrono::steady_clock::time_point deadline);

}  // namespace mica::launch
