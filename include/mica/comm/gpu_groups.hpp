#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"

namespace mica {

// Process groups for memory of GPUs. Both stand on a group of the same ranks for memory of the host, which they take over:
// it carries what ranks must know to find each other, and what on_host() is asked for.

struct NcclOptions {
  /// A collective, or the making of a communicator, that takes longer has failed. @param timeout  mesh.timeout
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// One rank alone goes through NCCL too (tests on a machine of one GPU).
  bool communicate_alone = false;
};

/// NCCL, one GPU a rank. [Note: NCCL groups]
/// - A communicator is made at a group's first collective, which all ranks enqueue at the same place of their order: groups
///   that a run never uses cost nothing.
/// - A thread watches what is under way: an asynchronous error, or a collective that outlasts the timeout, becomes one
///   NcclError that names rank, group, collective and unit; all communicators are aborted, so that no stream hangs, and the
///   stream that waits fails with it.
/// - Sums are NCCL's own: equal on all ranks, but not the bits of other backends.
/// @throws ConfigError: this build has no CUDA
[[nodiscard]] std::unique_ptr<ProcessGroup> make_nccl_group(std::unique_ptr<ProcessGroup> host, const NcclOptions& options);

/// Memory of a GPU by way of page-locked memory over `host`: slow, and right anywhere, also where ranks share a GPU. The
/// host does not wait: a worker thread does, and the GPU's stream waits for it.
/// @param pinned  of make_pinned_pool(); outlives the group
/// @throws ConfigError: this build has no CUDA
[[nodiscard]] std::unique_ptr<ProcessGroup> make_staged_group(std::unique_ptr<ProcessGroup> host, Pool& pinned);

/// "2.28.9", or "not built in".
[[nodiscard]] std::string nccl_version_text();

}  // namespace mica
