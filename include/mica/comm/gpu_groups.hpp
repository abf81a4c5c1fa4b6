// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"

namespace mica {

// Process groups for GPU memory. Both own a group of the same ranks for host memory: the ranks use it to connect, and
// host_group_of() returns it.

struct NcclOptions {
  /// Connection and collective timeout (mesh.timeout).
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// allocate() gives buffers of at least this size their own blocks and registers those. 0: every buffer.
  std::int64_t register_from_bytes = std::int64_t{4} << 20;
};

/// NCCL, one GPU per rank. [Note: NCCL groups]
/// - A communicator is made by connect_groups(), which a run calls early for the groups it uses, while the GPU has free memory
///   and a missing rank or a blocked network can be reported at once; at the latest it is made by a group's first collective.
///   All ranks do so in the same order. Groups that a run never uses cost nothing.
/// - A watchdog thread turns an asynchronous error, or a collective that exceeds the timeout, into one NcclError that names
///   rank, group, collective and unit. All communicators are aborted, so that no stream hangs, and the waiting stream fails
///   with that error. The rank cannot communicate afterwards: later collectives fail at once with the same error.
/// - Communicators are non-blocking (config.blocking = 0), which NCCL fixes when it makes one. That costs the host a thread
///   inside NCCL for each call (ncclGroupEnd starts one for the launch; some 20 us), while a blocking communicator launches in
///   the caller's thread. But nothing can end a blocking call from outside: creating a communicator waits for the last rank
///   forever, as does the first collective of a kind, which connects the GPUs, and aborting a communicator frees memory that a
///   call in another thread still uses. The host is ahead of the GPU by more than those 20 us unless collectives are tiny;
///   fewer, larger units mean fewer calls.
/// - Sums are NCCL's own: equal on all ranks, but not the bits of other backends.
/// Buffers: [Note: NCCL buffers]
/// NCCL copies data through its own buffers, unless a buffer is registered with the communicator: then other GPUs and network
/// cards access it directly, with fewer of the GPU's cores (NVLink SHARP within a node; rings; one GPU per node over
/// InfiniBand). Two rules of NCCL determine how Mica registers:
/// - All ranks or none: in one collective, every rank's buffer is registered, at the same offset from the beginning of its
///   registration. Otherwise the behaviour is undefined, and some ranks hang.
/// - A buffer that spans several pieces of physical memory is treated as not registered, by each rank on its own.
/// So neither the pool's pages (16 MiB pieces) nor its addresses (which differ between ranks) will do: allocate() gives units'
/// large buffers blocks of their own ([Note: blocks of their own]), registered from their beginning, once, with the group that
/// asked, at a point of the schedule that all ranks share. Registering is local and cheap: NCCL maps a buffer on the other GPUs at the
/// first collective that uses it. Small buffers would gain nothing and are not registered, nor is any memory from elsewhere.
/// @throws ConfigError: this build has no CUDA
[[nodiscard]] std::unique_ptr<ProcessGroup> make_nccl_group(std::unique_ptr<ProcessGroup> host, const NcclOptions& options);

struct StagedOptions {
  /// Whether `host` can also move GPU memory: mpi::Session::is_cuda_aware().
  bool host_takes_gpu_memory = false;
};

/// Moves GPU memory through page-locked host memory over `host`: slow, but it works everywhere, also where ranks share a GPU.
/// The host does not wait: a worker thread does, and the GPU's stream waits for that. If `host` can move GPU memory, all_gather
/// and broadcast use that directly; sums are always folded on the host, so that the bits are the same, as is an all_to_all,
/// which feeds such sums.
/// @param pinned  from make_pinned_pool(); outlives the group
/// @throws ConfigError: this build has no CUDA
[[nodiscard]] std::unique_ptr<ProcessGroup> make_staged_group(std::unique_ptr<ProcessGroup> host, Pool& pinned,
                                                              const StagedOptions& options = {});

/// Creates what the first collective of these groups would create (NCCL's communicators), while there is memory for it: call it
/// for the groups that a run will use. May be called repeatedly; groups that need nothing are skipped. @collective
/// @throws NcclError naming group, ranks and cause
void connect_groups(std::initializer_list<ProcessGroup*> groups);

/// The group of the same ranks for host memory on CPU streams, for data other than tensors. The group itself,
/// unless it is for GPU memory.
[[nodiscard]] ProcessGroup& host_group_of(ProcessGroup& group);

/// "2.28.9", or "not built in".
[[nodiscard]] std::string nccl_version_text();
/// Whether buffers can be registered: from NCCL 2.19 on.
[[nodiscard]] bool nccl_can_register();

/// For NcclOptions::register_from_bytes: register no buffer.
inline constexpr std::int64_t kRegisterNothing = std::numeric_limits<std::int64_t>::max();

}  // namespace mica
