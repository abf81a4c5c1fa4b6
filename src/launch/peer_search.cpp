// SPDX-License-Identifier: Apache-2.0
#include "peer_search.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <fmt/ranges.h>
#include <mpi.h>

#include "mica/core/error.hpp"
#include "mica/core/host.hpp"
#include "mica/launch/slurm_hosts.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::launch {
namespace {

constexpr const char* kMend =
    "open the network between these hosts (firewalls, for all TCP ports), or leave one of them out; if they have several networks, "
    "name the right one (Open MPI: --mca btl_tcp_if_include IF)";

/// Between two connections to a peer that did not answer.
constexpr std::chrono::milliseconds kBetweenTries{1000};

int world_rank() {
  int rank = 0;
  mpi::check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

std::string answer_of(int rank) { return fmt::format("mica rank {}", rank); }

/// "HOST PORT IP IP ...", at most as long as MPI allows for a port name.
std::string contact_text(const std::string& host, int port) {
  std::string text = fmt::format("{} {}", host, port);
  for (const Address& each : own_addresses()) {
    if (text.size() + 1 + each.ip.size() < MPI_MAX_PORT_NAME) text += " " + each.ip;
  }
  return text;
}

}  // namespace

PeerSearch::PeerSearch()
    : host_(host_name()),
      beacon_(answer_of(world_rank())),
      own_name_(published_name(world_rank())),
      own_contact_(contact_text(host_, beacon_.port())) {
  int num_ranks = 1;
  mpi::check(MPI_Comm_size(MPI_COMM_WORLD, &num_ranks), "MPI_Comm_size");
  for (const int rank : peers_of(world_rank(), num_ranks)) peers_.push_back({rank});
  is_published_ = MPI_Publish_name(own_name_.c_str(), MPI_INFO_NULL, own_contact_.c_str()) == MPI_SUCCESS;
}

PeerSearch::~PeerSearch() {
  if (is_published_) MPI_Unpublish_name(own_name_.c_str(), MPI_INFO_NULL, own_contact_.c_str());
}

std::string PeerSearch::published_name(int rank) const {
  const char* job = std::getenv("PMIX_NAMESPACE");  // one name server may serve several jobs
  return fmt::format("mica-{}-{}", job == nullptr ? "" : job, rank);
}

void PeerSearch::look() {
  if (!is_published_) return ask_slurm();
  for (Peer& peer : peers_) {
    std::array<char, MPI_MAX_PORT_NAME + 1> contact{};
    if (!peer.is_seen() && MPI_Lookup_name(published_name(peer.rank).c_str(), MPI_INFO_NULL, contact.data()) == MPI_SUCCESS) {
      peer.contact = contact.data();
    }
    if (peer.is_seen() && !peer.is_tried && suspect_.peer == nullptr) connect_to(peer);
  }
  // A packet may be lost, or the peer's host busy with the start of many ranks.
  if (suspect_.peer != nullptr && Clock::now() - suspect_.last > kBetweenTries) connect_to(*suspect_.peer);
}

void PeerSearch::ask_slurm() {
  const char* hosts_of_step = std::getenv("SLURM_STEP_NODELIST");
  if (hosts_of_step == nullptr || world_rank() != 0 || std::exchange(has_asked_slurm_, true)) return;
  unreachable_ = unreachable_slurm_host(hosts_of_step).pair;
}

void PeerSearch::connect_to(Peer& peer) {
  peer.is_tried = true;
  std::istringstream words(peer.contact);
  std::string host, ip;
  int port = 0;
  words >> host >> port;
  if (host == host_) return;  // ranks of one host use shared memory
  std::vector<std::string> ips;
  while (words >> ip) ips.push_back(ip);
  const std::vector<std::string> outcomes = probe(ips, port, answer_of(peer.rank), kConnectPatience);
  std::vector<std::string> failed;
  for (std::size_t i = 0; i < ips.size(); ++i) {
    if (!outcomes[i].empty()) failed.push_back(fmt::format("{} from {}: {}", ips[i], interface_to(ips[i]), outcomes[i]));
  }
  const std::string pair = fmt::format("{} cannot reach rank {} ({})", host_, peer.rank, host);
  const std::string text = fmt::format("{} at {}", pair, failed.empty() ? "any address" : fmt::format("{}", fmt::join(failed, "; ")));
  if (failed.size() == ips.size()) {
    suspect_ = {&peer, suspect_.times + 1, Clock::now()};
    if (suspect_.times > 1) unreachable_ = text;
    return;
  }
  suspect_ = {};
  unreachable_.clear();
  if (!failed.empty() && half_open_.empty()) half_open_ = text;
}

void PeerSearch::throw_if_unreachable() const {
  // A peer that has published has itself waited. While one is missing, it may just be late, and MPI may use another network than TCP.
  // Without published names nobody knows who is missing.
  const bool all_have_come = is_published_ && std::ranges::all_of(peers_, &Peer::is_seen);
  require<Error>(unreachable_.empty() || !all_have_come, "{}: MPI would wait for ever; {}", unreachable_, kMend);
}

void PeerSearch::tell_state() const {
  if (world_rank() != 0) return;
  std::vector<int> missing;
  for (const Peer& peer : peers_) {
    if (!peer.is_seen()) missing.push_back(peer.rank);
  }
  std::string state;
  if (!is_published_ && !unreachable_.empty()) {
    state = fmt::format("{}; if the run does not go on, {}", unreachable_, kMend);
  } else if (!is_published_) {
    state =
        "the launcher does not pass on addresses, so the ranks that it waits for are unknown: look for ranks that have failed, "
        "and for hosts that cannot reach each other";
  } else if (!missing.empty()) {
    state = fmt::format("rank{} {} did not reach it yet: slow to start, or failed; look at their output", missing.size() == 1 ? "" : "s",
                        fmt::join(missing, ", "));
  } else if (!half_open_.empty()) {
    state = fmt::format("{}, but can at another address; MPI may have chosen the wrong one: {}", half_open_, kMend);
  } else {
    state =
        "all ranks that rank 0 connects to have reached it and answer over TCP; the cause is another pair of hosts, or MPI's own network";
  }
  std::fprintf(stderr, "mica: warning: the first exchange of the ranks takes long; %s\n", state.c_str());
}

}  // namespace mica::launch
