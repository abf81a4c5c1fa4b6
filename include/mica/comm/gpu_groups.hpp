#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"

namespace mica {

// Process groups for memory of GPUs. Both stand on a group of the same ranks for memory of the host, which they take over:
// it carries what ranks must know to find each other, and is what host_group_of() gives.

struct NcclOptions {
  /// A collective, or the making of a communicator, that takes longer has failed. @param timeout  mesh.timeout
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// allocate() gives buffers of this size and more blocks of their own and registers them. 0: every buffer.
  std::int64_t register_from_bytes = std::int64_t{4} << 20;
};

/// NCCL, one GPU a rank. [Note: NCCL groups]
/// - A communicator is made by connect_groups(), which a run calls early for the groups that it uses, while the GPU has memory to
///   spare and a missing rank or a closed network can be told at once; at the latest by a group's first collective. All
///   ranks do so in the same order. Groups that a run never uses cost nothing.
/// - A thread watches what is under way: an asynchronous error, or a collective that outlasts the timeout, becomes one
///   NcclError that names rank, group, collective and unit; all communicators are aborted, so that no stream hangs, and the
///   stream that waits fails with it. That is the end of the rank's communication: what is asked for later fails at once
///   with that first error.
/// - Communicators do not block (config.blocking = 0), for life: NCCL fixes that when it makes one. It costs the host a
///   thread inside NCCL for each call (ncclGroupEnd starts one and leaves the launch to it; some 20 us), where a blocking
///   communicator launches in the caller's thread. But a blocking call has no end that anybody else can bring about: making
///   a communicator waits for the last rank for good, as does the first collective of a kind, which connects the GPUs, and
///   aborting a communicator frees what a call in another thread still stands in. The host is ahead of the GPU by more than
///   those 20 us wherever a collective is worth its name; the way to fewer of them is fewer, larger units.
/// - Sums are NCCL's own: equal on all ranks, but not the bits of other backends.
/// Buffers: [Note: NCCL buffers]
/// NCCL copies what it is given through memory of its own, unless a buffer is registered with the communicator: then other
/// GPUs and network cards read and write it directly, with fewer of the GPU's cores (NVLink SHARP within a node; rings; one
/// GPU a node over InfiniBand). Two rules of NCCL's shape how Mica does that:
/// - All ranks or none: for one collective every rank's buffer is registered, at the same distance from where its
///   registration begins. Ranks that differ are undefined behaviour, and some hang.
/// - A buffer that spans several pieces of physical memory is treated as not registered, by each rank for itself.
/// So neither the pool's pages (16 MiB pieces) nor its addresses (a rank's own) will do: allocate() gives large buffers of
/// units blocks of their own ([Note: blocks of their own]), registered from their beginning, once and with the group that
/// asked, at a place of the schedule that all ranks share. Registering is local and cheap: NCCL lets others in at the first
/// collective that uses a buffer. What is small gains nothing, and what other collectives use is registered nowhere.
/// @throws ConfigError: this build has no CUDA
[[nodiscard]] std::unique_ptr<ProcessGroup> make_nccl_group(std::unique_ptr<ProcessGroup> host, const NcclOptions& options);

struct StagedOptions {
  /// `host` moves bytes of a GPU's memory too: mpi::Session::is_cuda_aware().
  bool host_takes_gpu_memory = false;
};

/// Memory of a GPU by way of page-locked memory over `host`: slow, and right anywhere, also where ranks share a GPU. The
/// host does not wait: a worker thread does, and the GPU's stream waits for it. A `host` that takes a GPU's memory gets it
/// for all_gather and broadcast, which only move; sums are folded on the host whatever it takes, so that the bits are the
/// same, and an all_to_all feeds such sums.
/// @param pinned  of make_pinned_pool(); outlives the group
/// @throws ConfigError: this build has no CUDA
[[nodiscard]] std::unique_ptr<ProcessGroup> make_staged_group(std::unique_ptr<ProcessGroup> host, Pool& pinned,
                                                              const StagedOptions& options = {});

/// Makes what the first collective of these groups would make on the way (NCCL's communicators), while there is memory for
/// it: for groups that a run will use. Any number of times; groups that make nothing are left alone. @collective
/// @throws NcclError naming group, ranks and cause where that cannot be
void connect_groups(std::initializer_list<ProcessGroup*> groups);

/// The same ranks for memory of the host on streams of the CPU: what they have to tell each other beside tensors. The group
/// itself unless its tensors are a GPU's.
[[nodiscard]] ProcessGroup& host_group_of(ProcessGroup& group);

/// "2.28.9", or "not built in".
[[nodiscard]] std::string nccl_version_text();
/// Whether buffers can be registered: from NCCL 2.19 on.
[[nodiscard]] bool nccl_can_register();

/// For NcclOptions::register_from_bytes: no buffer.
inline constexpr std::int64_t kRegisterNothing = std::numeric_limits<std::int64_t>::max();

}  // namespace mica
