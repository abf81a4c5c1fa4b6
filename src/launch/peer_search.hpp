// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/launch/tcp_probe.hpp"

namespace mica::launch {

/// Looks for ranks that this one cannot reach, outside MPI's messages. Each rank publishes its host, addresses and the port of a
/// Beacon under a name that the launcher passes on (MPI_Publish_name), looks for those of its peers and connects to them.
/// Where the launcher passes on nothing, as srun, hosts of the Slurm step are connected to instead.
class PeerSearch {
 public:
  PeerSearch();
  ~PeerSearch();
  PeerSearch(const PeerSearch&) = delete;
  PeerSearch& operator=(const PeerSearch&) = delete;

  /// Looks up the peers that have not been seen yet, and connects to those that are new. May take a second.
  void look();
  /// @throws ConfigError if all peers have come, and one answers on none of its addresses.
  void throw_if_unreachable() const;
  /// Rank 0 prints what is known of an exchange that is late.
  void tell_state() const;

 private:
  struct Peer {
    int rank = 0;
    bool is_seen = false;
  };
  [[nodiscard]] std::string published_name(int rank) const;
  /// Connects to each address of a peer. @param contact  as publish() wrote it
  void connect_to(int rank, const std::string& contact);

  std::string host_;
  Beacon beacon_;
  std::vector<Peer> peers_;
  std::string own_name_, own_contact_;
  bool is_published_ = false;
  bool has_asked_slurm_ = false;
  std::string unreachable_;  ///< the first peer that answers nowhere; empty: none
  std::string half_open_;    ///< the first one that answers on some addresses only
};

}  // namespace mica::launch
