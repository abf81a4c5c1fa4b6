// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  /// @throws ConfigError if all peers have published, and one answers on none of its addresses. Without published names, never.
  void throw_if_unreachable() const;
  /// On rank 0, prints what is known about a late exchange.
  void tell_state() const;

 private:
  struct Peer {
    int rank = 0;
    bool is_seen = false;
  };
  [[nodiscard]] std::string published_name(int rank) const;
  void ask_slurm();
  /// Connects to each address of a peer. @param contact  as the peer published it
  void connect_to(int rank, const std::string& contact);

  std::string host_;
  Beacon beacon_;
  std::vector<Peer> peers_;
  std::string own_name_, own_contact_;
  bool is_published_ = false;
  bool has_asked_slurm_ = false;
  std::string unreachable_;  ///< about the first peer (or host of the step) that answers on none of its addresses; empty: none
  std::string half_open_;    ///< about the first one that answers on some addresses only
};

}  // namespace mica::launch
