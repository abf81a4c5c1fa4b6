// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "mica/launch/tcp_socket.hpp"

namespace mica::detail {

/// Signs of life between nodes, outside MPI. [Note: watchdog] The lowest rank of each node has a TCP connection to that of the next node,
/// all nodes in a ring. Each end first says its launch and rank: an address may be that of several hosts (bridges of containers), and lead
/// to any program. Then it sends a line a second. All functions but say_goodbye() are of one thread.
class NodeRing {
 public:
  using Seconds = std::chrono::duration<double>;
  /// A neighbour whose host says nothing for so long while collectives wait has gone. One whose host is there has the whole patience.
  static constexpr Seconds kSilence{20};

  /// Makes `ring` on a node's lowest rank, if a port can be opened. @returns where the others reach it; empty: nowhere
  [[nodiscard]] static std::string open(std::unique_ptr<NodeRing>& ring, bool is_leader, const std::string& launch);
  /// @param contacts  of the nodes' lowest ranks
  void connect(int rank, const std::map<int, std::string>& contacts);

  /// Takes and sends what there is, without waiting. @param passed  since the last call  @param waited  how long this rank has been in a
  /// collective  @param patience  with a silent neighbour
  void exchange(Seconds passed, Seconds waited, Seconds patience);
  /// Whether one has said its rank, and no goodbye.
  [[nodiscard]] bool has_neighbour();
  /// What a neighbour told, or did not tell any more; empty: nothing is wrong.
  [[nodiscard]] const std::string& alarm() const { return alarm_; }
  [[nodiscard]] const std::set<int>& silent() const { return silent_; }
  /// Who has said nothing for so long, when the job is to end for another reason.
  void count_silent(Seconds for_so_long);
  /// Whose connection was closed without a goodbye.
  [[nodiscard]] const std::set<int>& gone() const { return gone_; }
  void send_alarm(const std::string& text);
  /// Its neighbours do not miss this rank any more. Any thread.
  void say_goodbye();

 private:
  struct Link {
    int rank = -1;         ///< of the neighbour; -1: not known yet
    bool is_call = false;  ///< of this rank to the next node's
    UniqueFd socket;
    std::string received;
    Seconds silent{0};
    bool is_over = false, is_reset = false;
  };

  NodeRing(launch::Listener listener, std::string launch) : listener_(std::move(listener)), launch_(std::move(launch)) {}
  void accept_neighbour();
  void reach_neighbour(Seconds passed);
  void give_up(Link& call);
  [[nodiscard]] std::string hello() const;
  void receive(Link& link);
  void take(Link& link, const std::string& line);
  void send(const Link& link, const std::string& line) const;

  launch::Listener listener_;
  std::string launch_;
  std::mutex mutex_;  // links_
  int rank_ = 0;
  int next_ = -1;                       // the next node's lowest rank
  int port_ = 0;                        // where it listens
  std::vector<std::string> addresses_;  // of it
  std::size_t num_tries_ = 0;
  Seconds until_next_try_{0};
  std::vector<std::unique_ptr<Link>> links_;
  Seconds since_beat_{0};
  std::string alarm_;
  std::set<int> silent_, gone_;
};

}  // namespace mica::detail
