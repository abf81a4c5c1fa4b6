// SPDX-License-Identifier: Apache-2.0
#include "node_line.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kEnd = 'e';
constexpr std::chrono::milliseconds kPause{100};

std::string step_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Calls bind or connect with the address of a name.
template <class Call>
bool at_name(const std::string& name, const Call& call) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A first byte of zero: an abstract name (unix(7)).
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  return call(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size)) == 0;
}

UniqueFd make_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

/// Another user may have taken the name.
bool is_own(const UniqueFd& socket) {
  ucred other{};
  socklen_t length = sizeof other;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == ::geteuid();
}

/// Nothing, with errno, if nobody, or another user, listens, or too many ranks wait there.
UniqueFd line_at(const std::string& name) {
  UniqueFd socket = make_socket();
  if (!socket || !at_name(name, [&](const sockaddr* at, socklen_t size) { return ::connect(socket.get(), at, size); })) return {};
  if (is_own(socket)) return socket;
  errno = EACCES;
  return {};
}

}  // namespace

NodeLine::NodeLine() : name_(fmt::format("mica-{}-{}-{}", ::geteuid(), step_variable("SLURM_JOB_ID"), step_variable("SLURM_STEP_ID"))) {}

void NodeLine::open() {
  UniqueFd socket = make_socket();
  const bool is_open = socket && at_name(name_, [&](const sockaddr* at, socklen_t size) { return ::bind(socket.get(), at, size); }) &&
                       ::listen(socket.get(), 1024) == 0;
  if (is_open) socket_ = std::move(socket);
}

void NodeLine::tell_end() const {
  if (!socket_) return;
  for (const Clock::time_point until = Clock::now() + std::chrono::seconds(1); Clock::now() < until;) {
    pollfd entry{socket_.get(), POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(kPause.count())) <= 0) continue;
    const UniqueFd other(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (other) static_cast<void>(::send(other.get(), &kEnd, 1, MSG_NOSIGNAL));
  }
}

NodeLine::Heard NodeLine::listen(const std::stop_token& stop, std::chrono::milliseconds patience) const {
  const UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const std::stop_callback on_stop(stop, [&] { ::eventfd_write(wake.get(), 1); });
  UniqueFd line;
  bool is_open = false;  // though its queue is full (EAGAIN): with net.core.somaxconn = 128 on nodes of more ranks
  for (const Clock::time_point until = Clock::now() + patience; !stop.stop_requested();) {
    if (!line) {
      line = line_at(name_);
      const bool is_full = !line && errno == EAGAIN;
      if (!line && !is_full && is_open) return Heard::closed;
      is_open = is_open || line || is_full;
      if (!is_open && Clock::now() >= until) return Heard::nobody;
    }
    std::array<pollfd, 2> entries{{{wake.get(), POLLIN, 0}, {line.get(), POLLIN, 0}}};  // of -1, no line, poll takes no notice
    ::poll(entries.data(), entries.size(), static_cast<int>(kPause.count()));
    if (entries[1].revents == 0) continue;
    char word = 0;
    return ::recv(line.get(), &word, 1, 0) == 1 && word == kEnd ? Heard::end : Heard::closed;
  }
  return Heard::nobody;
}

}  // namespace mica::launch
