// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mica::plan {

/// What a task takes from the others that run at the same time.
enum class Resource : std::uint8_t {
  compute,  ///< the rank's processor
  in_node,  ///< the links between the ranks of a node
  network,  ///< the links between nodes
};

/// One thing that the host does, in its order.
struct SimOp {
  enum class Kind : std::uint8_t { task, wait, host_wait, mark };
  Kind kind = Kind::task;
  std::uint8_t stream = 0;
  Resource resource = Resource::compute;
  double seconds = 0;       ///< of a task that runs alone
  std::int32_t event = -1;  ///< of a wait: index of an earlier op; -1: complete
};

struct SimOptions {
  int num_streams = 1;
  std::uint8_t compute_stream = 0;  ///< communication is exposed while it computes nothing
  double host_task_s = 0;           ///< what enqueueing a task takes the host
  double host_wait_s = 0;           ///< ... a wait
  bool inlined = false;             ///< tasks run inside the host's call (StreamMode::inlined)
  /// How fast computation runs beside communication, and the other way round, from above 0 to 1 (1: they do not disturb each other).
  double compute_beside_communication = 1, communication_beside_compute = 1;
};

/// A stretch of time up to a mark.
struct SimStep {
  double seconds = 0;
  double compute_busy = 0;        ///< the compute stream has a task
  double communication_busy = 0;  ///< any collective is under way
  double exposed = 0;             ///< ... while the compute stream has none
  double host_waits = 0;          ///< the host waits for a device's work
};

/// Runs what one rank enqueues: a discrete-event simulation. [Note: simulation]
/// The host enqueues the ops one after another, each taking it host_task_s or host_wait_s, and stops at a host_wait until that op is
/// done. A stream runs its ops in order; a task starts when the host has enqueued it, the stream's earlier ops are done and the
/// waits before it are over. Tasks that use one kind of link share it evenly; computation and communication slow each other down as the
/// options say. All ranks are taken to do the same at the same time, so a collective begins on all of them at once.
/// @return a step for each mark: from the mark before (or the beginning) until every task enqueued before it is done.
/// @throws Error for an op that waits for a later one, or a stream that does not exist.
[[nodiscard]] std::vector<SimStep> simulate(std::span<const SimOp> ops, const SimOptions& options);

}  // namespace mica::plan
