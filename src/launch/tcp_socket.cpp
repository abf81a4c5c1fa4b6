// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/tcp_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>

#include "mica/core/error.hpp"

#include "ipv4.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t milliseconds_until(Clock::time_point deadline) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
}

}  // namespace

Listener Listener::open() {
  Listener made{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  const int fd = made.socket.get();
  const bool listens = made.socket && ::bind(fd, as_sockaddr(address), sizeof address) == 0 && ::listen(fd, 128) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  require<IoError>(listens, "cannot open a TCP socket: {}", errno_text(errno));
  made.port = ntohs(address.sin_port);
  return made;
}

UniqueFd Listener::accept() const { return UniqueFd(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); }

bool is_ready(int socket, short events, Clock::time_point deadline) {
  const std::int64_t left = milliseconds_until(deadline);
  pollfd entry{socket, events, 0};
  return left > 0 && ::poll(&entry, 1, static_cast<int>(left)) > 0;
}

Connection connect_to(const std::string& ip, int port, std::chrono::milliseconds timeout) {
  return std::move(connect_to_all({ip}, port, timeout)[0]);
}

std::vector<Connection> connect_to_all(const std::vector<std::string>& ips, int port, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::vector<Connection> made;
  std::vector<pollfd> waiting;  // for each of them; -1, which poll leaves out: its outcome is known
  for (const std::string& ip : ips) {
    Connection& each = made.emplace_back();
    each.socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_in address = address_of(ip, port);
    const int error = each.socket && ::connect(each.socket.get(), as_sockaddr(address), sizeof address) == 0 ? 0 : errno;
    waiting.push_back({error == EINPROGRESS ? each.socket.get() : -1, POLLOUT, 0});
    if (error != 0 && error != EINPROGRESS) each.failure = errno_text(error);
  }
  const auto is_open = [](const pollfd& entry) { return entry.fd >= 0; };
  for (std::int64_t left = 0; std::ranges::any_of(waiting, is_open) && (left = milliseconds_until(deadline)) > 0;) {
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0) continue;  // the deadline, or a signal
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (!is_open(waiting[i]) || waiting[i].revents == 0) continue;
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(waiting[i].fd, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) made[i].failure = errno_text(error);
      waiting[i].fd = -1;
    }
  }
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (!is_open(waiting[i])) continue;
    made[i].failure = fmt::format("no answer within {:g} s", std::chrono::duration<double>(timeout).count());
    made[i].is_silent = true;
  }
  return made;
}

}  // namespace mica::launch
