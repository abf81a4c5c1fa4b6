// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "mica/launch/tcp_probe.hpp"

namespace mica::launch {

/// Finds ranks that this one cannot reach, without MPI messages. Each rank publishes its host, its addresses and the port of a Beacon
/// through the launcher (MPI_Publish_name), looks up its peers and connects to them. If the launcher does not support that (srun), rank 0
/// connects to the hosts of the Slurm step instead.
class PeerSearch {
 public:
  PeerSearch();
  ~PeerSearch();
  PeerSearch(const PeerSearch&) = delete;
  PeerSearch& operator=(const PeerSearch&) = delete;

  /// Looks up the peers that were not found before, and connects to new ones. May take a second; the hosts of a Slurm step, once, three.
  void look();
  /// @throws Error if all peers have published, and one answered on none of its addresses, twice. Without published names, never.
  void throw_if_unreachable() const;
  /// Whether a peer did not answer and will be asked again.
  [[nodiscard]] bool is_in_doubt() const { return suspect_.times == 1; }
  /// On rank 0, prints what is known about a late exchange.
  void tell_state() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int rank = 0;
    std::string contact;  ///< as the peer published it; empty: it did not yet
    bool is_tried = false;
    [[nodiscard]] bool is_seen() const { return !contact.empty(); }
  };
  /// A peer that answers on none of its addresses.
  struct Suspect {
    Peer* peer = nullptr;  ///< null: there is none
    int times = 0;
    Clock::time_point last;
  };
  [[nodiscard]] std::string published_name(int rank) const;
  void ask_slurm();
  /// Connects to each address of a peer, for the first time or because it is the suspect.
  void connect_to(Peer& peer);

  std::string host_;
  Beacon beacon_;
  std::vector<Peer> peers_;
  std::string own_name_, own_contact_;
  bool is_published_ = false;
  bool has_asked_slurm_ = false;
  Suspect suspect_;
  std::string unreachable_;  ///< about the suspect (or a host of the step), once it did not answer twice; empty: none
  std::string half_open_;    ///< about the first one that answers on some addresses only
};

}  // namespace mica::launch
