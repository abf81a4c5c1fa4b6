// SPDX-License-Identifier: Apache-2.0
#include "node_ring.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "mica/core/error.hpp"
#include "mica/launch/tcp_probe.hpp"

namespace mica::detail {
namespace {

constexpr NodeRing::Seconds kBeatEvery{1};
constexpr std::chrono::milliseconds kConnect{200};
/// Between two rounds over all addresses of a neighbour that does not answer: one lost packet is no reason to do without it.
constexpr NodeRing::Seconds kConnectEvery{5};
/// For the answer of whoever accepts a connection. At an address that another host has, too, that may be any program.
constexpr NodeRing::Seconds kAnswer{5};
/// How long an end without a goodbye is looked at first: a job that ends for another reason ends meanwhile.
constexpr NodeRing::Seconds kAfterEnd{0.5};
/// A connection can be reset while both its ends live. Then they are taken as lost only if somebody waits, too.
constexpr NodeRing::Seconds kAfterReset{5};
constexpr std::size_t kLongestLine = 4096;

constexpr std::string_view kHello = "mica ", kBeat = "beat", kAlarm = "alarm ", kGoodbye = "goodbye";

/// Whether the other end's kernel has acknowledged a line lately: then its host is there, and its process is only held or slow.
bool is_host_there(const UniqueFd& socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  return std::chrono::milliseconds(info.tcpi_last_ack_recv) < 3 * kBeatEvery;
}

}  // namespace

std::string NodeRing::open(std::unique_ptr<NodeRing>& ring, bool is_leader, const std::string& launch) {
  if (!is_leader) return {};
  std::string contact;
  try {
    launch::Listener listener = launch::Listener::open();
    contact = fmt::format("{}", listener.port);
    for (const launch::Address& address : launch::own_addresses()) contact += " " + address.ip;
    ring.reset(new NodeRing(std::move(listener), launch));
  } catch (const IoError&) {  // this node is not looked after from outside
    return {};
  }
  return contact;
}

void NodeRing::connect(int rank, const std::map<int, std::string>& contacts) {
  rank_ = rank;
  auto next = std::next(contacts.find(rank));
  if (next == contacts.end()) next = contacts.begin();
  next_ = next->first;
  std::istringstream words(next->second);
  words >> port_;
  for (std::string ip; words >> ip;) addresses_.push_back(ip);
}

void NodeRing::exchange(Seconds passed, Seconds waited, Seconds patience) {
  const std::lock_guard lock(mutex_);
  std::erase_if(links_, [](const auto& link) { return link->is_over && link->rank < 0; });  // of a stranger
  reach_neighbour(passed);
  accept_neighbour();
  since_beat_ += passed;
  const bool beats = since_beat_ >= kBeatEvery;
  if (beats) since_beat_ = Seconds(0);
  for (const std::unique_ptr<Link>& link : links_) {
    if (beats && !link->is_over) send(*link, std::string(kBeat));
    link->silent += passed;
    if (!link->is_over) receive(*link);
    if (link->is_call && link->rank < 0 && link->silent >= kAnswer) give_up(*link);
    if (link->rank < 0 || silent_.contains(link->rank)) continue;
    const Seconds reset_patience = link->is_reset ? std::min(patience, kAfterReset) : Seconds(0);
    if (link->is_over && link->socket && link->silent >= kAfterEnd) {
      gone_.insert(link->rank);
      if (waited >= reset_patience && alarm_.empty()) alarm_ = fmt::format("rank {} has closed its connection", link->rank);
      continue;
    }
    const Seconds limit = is_host_there(link->socket) ? patience : std::min(patience, kSilence);
    if (!link->is_over && link->silent >= limit && waited >= limit) {
      silent_.insert(link->rank);
      alarm_ = fmt::format("rank {}'s node is silent for {:.0f} s", link->rank, link->silent.count());
    }
  }
}

void NodeRing::count_silent(Seconds for_so_long) {
  const std::lock_guard lock(mutex_);
  for (const std::unique_ptr<Link>& link : links_) {
    if (link->rank >= 0 && !link->is_over && link->silent >= for_so_long) silent_.insert(link->rank);
  }
}

void NodeRing::reach_neighbour(Seconds passed) {
  until_next_try_ -= passed;
  if (addresses_.empty() || until_next_try_ > Seconds(0)) return;
  if (std::ranges::any_of(links_, [](const auto& link) { return link->is_call; })) return;
  launch::Connection made = launch::connect_to(addresses_[num_tries_ % addresses_.size()], port_, kConnect);
  if (++num_tries_ % addresses_.size() == 0) until_next_try_ = kConnectEvery;
  if (!made.failure.empty()) return;
  links_.push_back(std::make_unique<Link>());
  links_.back()->is_call = true;
  links_.back()->socket = std::move(made.socket);
  send(*links_.back(), hello());
}

void NodeRing::give_up(Link& call) {
  send(call, std::string(kGoodbye));  // a neighbour that was held reads this later
  call.is_over = true;
  call.socket.reset();
}

std::string NodeRing::hello() const { return fmt::format("{}{} {}", kHello, launch_, rank_); }

void NodeRing::accept_neighbour() {
  while (UniqueFd caller = listener_.accept()) {
    links_.push_back(std::make_unique<Link>());
    links_.back()->socket = std::move(caller);
  }
}

void NodeRing::receive(Link& link) {
  std::array<char, 512> part{};
  bool has_ended = false, is_reset = false;
  while (!has_ended) {
    const ssize_t bytes = ::recv(link.socket.get(), part.data(), part.size(), 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    is_reset = bytes < 0;
    if (bytes > 0) link.received.append(part.data(), static_cast<std::size_t>(bytes));
    for (std::size_t end = 0; (end = link.received.find('\n')) != std::string::npos;) {
      const std::string line = link.received.substr(0, end);
      link.received.erase(0, end + 1);
      take(link, line);
      if (link.is_over) return;
    }
    has_ended = bytes <= 0 || link.received.size() > kLongestLine;  // its end, an error, or somebody else
  }
  link.is_over = true;
  link.is_reset = is_reset;
  link.silent = Seconds(0);
}

void NodeRing::take(Link& link, const std::string& line) {
  if (link.rank < 0) {
    const std::string of_launch = std::string(kHello) + launch_ + " ";
    if (!line.starts_with(of_launch)) return;  // of another launch, or no rank at all: not listened to
    const int rank = std::atoi(line.c_str() + of_launch.size());
    if (link.is_call && rank != next_) return;
    if (!link.is_call) send(link, hello());
    link.rank = rank;
    link.silent = Seconds(0);
    return;
  }
  link.silent = Seconds(0);
  if (line == kGoodbye) {
    link.is_over = true;
    link.socket.reset();
  } else if (line.starts_with(kAlarm) && alarm_.empty()) {
    alarm_ = line.substr(kAlarm.size());
  }
}

void NodeRing::send(const Link& link, const std::string& line) const {
  const std::string text = line + "\n";
  static_cast<void>(::send(link.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void NodeRing::send_alarm(const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->is_over) send(*link, std::string(kAlarm) + text);
  }
}

bool NodeRing::has_neighbour() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(links_, [](const auto& link) { return link->rank >= 0 && link->socket; });
}

void NodeRing::say_goodbye() {
  const std::lock_guard lock(mutex_);
  accept_neighbour();  // one that has only just called
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->is_over) send(*link, std::string(kGoodbye));
  }
}

}  // namespace mica::detail
