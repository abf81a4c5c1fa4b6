// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/tcp_socket.hpp"

#include <cerrno>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "mica/core/error.hpp"

namespace mica::launch {
namespace {

const sockaddr* as_sockaddr(const sockaddr_in& address) { return reinterpret_cast<const sockaddr*>(&address); }

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

bool is_ready(int socket, short events, std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  pollfd entry{socket, events, 0};
  return left > 0 && ::poll(&entry, 1, static_cast<int>(left)) > 0;
}

Connection connect_to(const std::string& ip, int port, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  Connection made{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), ""};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, ip.c_str(), &address.sin_addr);
  int error = made.socket && ::connect(made.socket.get(), as_sockaddr(address), sizeof address) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!is_ready(made.socket.get(), POLLOUT, deadline)) {
      made.failure = fmt::format("no answer within {:g} s", std::chrono::duration<double>(timeout).count());
      return made;
    }
    socklen_t length = sizeof error;
    ::getsockopt(made.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) made.failure = errno_text(error);
  return made;
}

}  // namespace mica::launch
