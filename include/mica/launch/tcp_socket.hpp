// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "mica/core/unique_fd.hpp"

namespace mica::launch {

/// A TCP port of this host, on all its IPv4 interfaces. Never blocks.
struct Listener {
  UniqueFd socket;
  int port = 0;
  /// @throws IoError
  [[nodiscard]] static Listener open();
  /// The next one who has connected; null: nobody. Its socket does not block.
  [[nodiscard]] UniqueFd accept() const;
};

struct Connection {
  UniqueFd socket;      ///< does not block
  std::string failure;  ///< empty: there is a connection
};
[[nodiscard]] Connection connect_to(const std::string& ip, int port, std::chrono::milliseconds timeout);

/// Whether the socket can be read (events POLLIN), or is connected (POLLOUT), before the deadline.
[[nodiscard]] bool is_ready(int socket, short events, std::chrono::steady_clock::time_point deadline);

}  // namespace mica::launch
