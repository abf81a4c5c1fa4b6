// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <nccl.h>

namespace mica::cuda_emulation {

enum class OperationKind { all_gather, reduce_scatter, all_reduce, broadcast, send, receive };

/// What one rank asks for.
struct Operation {
  OperationKind kind = OperationKind::all_gather;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;  ///< of a broadcast; the other rank of a send or receive
  std::shared_ptr<ncclComm> comm;
  cudaStream_t stream = nullptr;
  /// Whether the two are in registered buffers, and how far behind its beginning the one is that all ranks have alike: what
  /// is gathered, what is added up. -1: not in one.
  bool send_registered = false, receive_registered = false;
  std::ptrdiff_t registered_at = -1;

  [[nodiscard]] std::size_t bytes() const;          ///< of `count` elements
  [[nodiscard]] std::size_t send_bytes() const;     ///< that this rank's `send` has
  [[nodiscard]] std::size_t receive_bytes() const;  ///< that this rank's `receive` has
};

[[nodiscard]] const char* name(OperationKind kind);

/// Moves and adds up what a collective's ranks brought, ordered by rank; sums go in that order, and 16-bit ones round
/// after each rank. A send and its receive: {send, receive}.
void execute(const std::vector<Operation>& ranks);

}  // namespace mica::cuda_emulation
