// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "mica/core/error.hpp"

namespace mica {

/// Another rank failed or went away: not this rank's own failure.
class PeerLeft : public Error {
 public:
  using Error::Error;
};

/// Where the rank threads of one local group meet. Waiting ranks sleep.
class RankBarrier {
 public:
  /// @param names  the ranks' names in error texts.
  RankBarrier(std::vector<int> names, std::chrono::milliseconds stall_timeout);

  /// Waits for all ranks. @param what  begins the error text.
  /// @throws PeerLeft if the barrier was closed before all came; Error naming the missing ranks after the stall timeout.
  void arrive(int rank, const std::string& what);
  /// Waits for all ranks, whatever happens: for the phases of an operation in which all ranks are known to take part,
  /// and which may end only when nobody reads the others' memory any more.
  void finish(int rank);
  /// From now on arrive() throws, unless everybody came before. The first reason counts.
  void close(const std::string& reason);
  /// One rank comes no more, having done its part: closes the barrier for those who would meet it.
  void leave(const std::string& reason);
  /// For one who waits for what others do without meeting them. @throws PeerLeft if it was closed, or all others have left.
  void require_peers(const std::string& what);

 private:
  void come(std::unique_lock<std::mutex>& lock, int rank);
  [[nodiscard]] std::string missing() const;

  const std::vector<int> names_;
  const std::chrono::milliseconds stall_timeout_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  std::vector<bool> is_here_;
  std::size_t num_here_ = 0;
  std::uint64_t generation_ = 0;
  std::string closed_;  // why; empty while open
  bool has_failed_ = false;
  std::size_t num_left_ = 0;
};

}  // namespace mica
