// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mica::plan {

/// What a task uses and shares with other tasks.
enum class Resource : std::uint8_t {
  compute,  ///< the rank's processor
  in_node,  ///< the links between the ranks of a node
  network,  ///< the links between nodes
};

/// One operation of the host.
struct SimOp {
  enum class Kind : std::uint8_t { task, wait, host_wait, mark };
  Kind kind = Kind::task;
  std::uint8_t stream = 0;
  Resource resource = Resource::compute;
  double seconds = 0;       ///< of a task, if it runs alone
  std::int32_t event = -1;  ///< of a wait: index of an earlier op; -1: already complete
};

struct SimOptions {
  int num_streams = 1;
  std::uint8_t compute_stream = 0;  ///< communication is exposed while it computes nothing
  double host_task_s = 0;           ///< host time to enqueue a task
  double host_wait_s = 0;           ///< host time to enqueue a wait
  bool inlined = false;             ///< tasks run inside the host's call (StreamMode::inlined)
  /// Relative speed of computation while communication runs, and vice versa: above 0, at most 1 (1: no slowdown).
  double compute_beside_communication = 1, communication_beside_compute = 1;
};

/// The simulated time up to a mark.
struct SimStep {
  double seconds = 0;
  double compute_busy = 0;        ///< the compute stream has a task
  double communication_busy = 0;  ///< any collective is under way
  double exposed = 0;             ///< ... while the compute stream has none
  double host_waits = 0;          ///< the host waits for a device's work; 0 if inlined
};

/// Runs what one rank enqueues: a discrete-event simulation. [Note: simulation] The host enqueues the ops in order. Each takes host_task_s
/// or host_wait_s; at a host_wait the host stops until the awaited op is done. A stream runs its ops in order: a task starts when the host
/// has enqueued it and the stream's earlier ops, waits included, are done. Tasks of several streams that use the same kind of link share it
/// evenly, and so do those that compute, since a kernel's blocks fill the processor.
/// Computation and communication slow each other down as the options say. All ranks are assumed to do the same at the same time, so a
/// collective begins on all of them at once.
/// @return a step for each mark: from the previous mark (or the beginning) until every task enqueued before the mark is done.
/// @throws Error for an op that waits for a later one, or a stream that does not exist.
[[nodiscard]] std::vector<SimStep> simulate(std::span<const SimOp> ops, const SimOptions& options);

}  // namespace mica::plan
