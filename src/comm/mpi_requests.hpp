// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "mpi_transfer.hpp"

namespace mica::detail {

/// Bytes as MPI counts them, in one call.
[[nodiscard]] int mpi_count(std::int64_t bytes);

/// Messages that are under way. What has not come when this ends, since something has failed, is no longer waited for:
/// nothing is written into a buffer that its owner has back. Between two ranks, messages match in the order of their calls.
class Requests {
 public:
  /// @param peers  outlives this.
  explicit Requests(const Peers& peers);
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Before the first send(). Of no bytes nothing is sent nor received.
  void receive(void* data, std::int64_t bytes, int from);
  void send(const void* data, std::int64_t bytes, int to);
  /// One after another: MPI_Waitall of Open MPI 4.1 never returns when a message failed before it was called.
  /// @throws MpiError with the cause of the first message that failed; Error once *peers.is_aborted is set.
  void wait_for_all();

 private:
  const Peers& peers_;
  std::vector<MPI_Request> requests_;  // receives, then sends
  std::size_t num_receives_ = 0;
};

}  // namespace mica::detail
