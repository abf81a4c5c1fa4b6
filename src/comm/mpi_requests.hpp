// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "mpi_transfer.hpp"

namespace mica::detail {

/// A number of bytes as MPI's int count. Asserts that it fits.
[[nodiscard]] int mpi_count(std::int64_t bytes);

/// Point-to-point messages in progress. The destructor cancels receives that have not completed (because something failed), so that
/// nothing is written into a buffer after its owner has it back. Between two ranks, messages match in the order of the calls.
class Requests {
 public:
  /// @param peers  outlives this.
  explicit Requests(const Peers& peers);
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Call it before the first send(). Messages of 0 bytes are neither sent nor received.
  void receive(void* data, std::int64_t bytes, int from);
  void send(const void* data, std::int64_t bytes, int to);
  /// Waits for one after another: MPI_Waitall of Open MPI 4.1 never returns if a message failed before the call.
  /// @throws MpiError with the cause of the first message that failed; Error once *peers.is_aborted is set.
  void wait_for_all();

 private:
  const Peers& peers_;
  std::vector<MPI_Request> requests_;  // receives, then sends
  std::size_t num_receives_ = 0;
};

}  // namespace mica::detail
