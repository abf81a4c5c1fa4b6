// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "mica/comm/collective.hpp"
#include "mica/comm/flight_recorder.hpp"
#include "mica/comm/shared_parts.hpp"
#include "mica/device/pool.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica {

/// An ordered set of ranks that communicate. [Note: process groups]
/// Collectives are enqueued on a stream and matched by their order within one group, so each stream that communicates has a
/// group of its own (duplicate()). Groups do not wait for each other, but the hosts of all ranks must enqueue the collectives
/// of all groups in the same order: staging memory that passes from one stream to another, and an MPI in which only one thread may
/// communicate, make the streams follow the host's order. Sums are folded in rank order (long slices on several nodes: within each
/// node, then over the nodes, [Note: collectives by node]), in f32 for low-precision dtypes, so that every backend gives the same
/// bits on every rank. Sizes are checked before any traffic. A failure inside a collective is
/// the stream's sticky error and names group, collective and label.
/// In a group of one rank, nothing is sent or counted (all_gather, reduce_scatter and all_to_all copy unless in place); nor is it
/// for a collective of no elements. A group outlives its enqueued work.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Whether this is a group of one rank, whose collectives are at most copies.
  [[nodiscard]] bool is_alone() const { return is_alone_; }

  // All: @collective over the group, in the same order on all ranks. @stream enqueued; the host does not block.
  // @lifetime  the views until the stream has run it; the label is copied.  @throws ConfigError before any traffic.

  /// full [S*P] = concatenation of every rank's shard [P], same dtype; shard may be full's own slice (in place).
  void all_gather(Stream& s, const char* label, ConstTensorView shard, TensorView full);
  /// shard [P] = sum over ranks of their full [S*P], this rank's slice; shard may be full's own slice.
  /// fp32, bf16 or fp16. `full` is unchanged, except this rank's slice if `shard` is that slice.
  void reduce_scatter(Stream& s, const char* label, ConstTensorView full, TensorView shard);
  /// In place. fp32, bf16 or fp16.
  void all_reduce(Stream& s, const char* label, TensorView data, ReduceOp op);
  /// received [S*P] = concatenation over ranks of this rank's slice of their `sent` [S*P]: the summands of a reduce_scatter. Any
  /// dtype; the two must not overlap.
  void all_to_all(Stream& s, const char* label, ConstTensorView sent, TensorView received);
  /// In place, from `root`.
  void broadcast(Stream& s, const char* label, TensorView data, int root);
  void barrier(Stream& s, const char* label);

  /// A group of the same ranks with its own communicator. No collective of this group may be pending meanwhile. @collective
  [[nodiscard]] virtual std::unique_ptr<ProcessGroup> duplicate(std::string name) = 0;
  /// Ranks of equal color form a group, ordered by key, then rank. Otherwise as duplicate(). @collective
  [[nodiscard]] virtual std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) = 0;
  /// A group of these ranks of this group, in this order; each rank names the subgroup that it belongs to. Unlike split(), also
  /// possible in a fake group, whose other ranks do not exist. Otherwise as duplicate(). @collective
  [[nodiscard]] std::unique_ptr<ProcessGroup> subgroup(std::span<const int> members, std::string name);

  /// Storage for a unit (docs/design.md, Storage). By default from the pool. A backend may register the memory, so all ranks must
  /// allocate the same sizes in the same order.
  [[nodiscard]] virtual Buffer allocate(Pool& pool, std::int64_t bytes, MemoryRole role, Stream& home) {
    return pool.allocate(bytes, role, home);
  }
  /// Whether allocate_parts() allocates memory that all members see.
  [[nodiscard]] virtual bool shares_memory() const { return false; }
  /// [numel] elements for this rank, next to those of the other members if the group shares memory (and numel > 0).
  /// Contents are undefined; other members' parts are undefined until those publish. Otherwise as duplicate(). @collective
  /// @throws ConfigError on all ranks alike, if the node does not have that much memory to share
  [[nodiscard]] virtual SharedParts allocate_parts(Pool& pool, std::int64_t numel, DType dtype, MemoryRole role, Stream& home);
  /// The stream continues when all members have published (all others have released) that round. Counted as a call of 0 bytes.
  /// @stream enqueued  @lifetime the parts until the stream has run it.
  void wait_for_written(Stream& s, const char* label, const SharedParts& parts, std::uint64_t round);
  void wait_for_released(Stream& s, const char* label, const SharedParts& parts, std::uint64_t round);
  /// The stream continues when it is this member's turn ([Note: turns]). Counted as wait_for_written().
  void wait_for_turn(Stream& s, const char* label, const SharedParts& parts, const PartTurn& turn);

  /// Ends the group's communication for good: collectives in progress and later ones fail with `why` and no longer wait for other
  /// ranks. Any thread. A group of one rank is not affected. (Over MPI, collectives in progress end only with
  /// MpiGroupOptions::can_be_aborted. Over NCCL, all groups of the rank end.)
  void abort(const std::string& why);

  [[nodiscard]] const CollectiveCounts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }
  /// Host time that streams have spent inside collectives, in ms (0 for fake). Any thread.
  [[nodiscard]] virtual double busy_ms() const { return static_cast<double>(busy_ns_.load()) * 1e-6; }
  /// Bytes that this rank has sent point to point to ranks on other nodes (0 for fake, and over NCCL). What MPI's own
  /// collectives send is unknown; they move only short slices (mpi_group.hpp). Any thread.
  [[nodiscard]] virtual std::int64_t bytes_to_other_nodes() const { return 0; }
  /// What this group is waiting for: "group 'shard' (rank 1 of 4): #12 all_gather 'h.3' ... running for 5.2 s". Any thread.
  [[nodiscard]] virtual std::string describe_pending() const;
  [[nodiscard]] const FlightRecorder& recorder() const { return recorder_; }

 protected:
  /// @param communicates_alone  whether a group of one rank also uses its backend
  ProcessGroup(int rank, int num_ranks, std::string name, bool communicates_alone = false);

  /// From now on, also records for the rank's watchdog. [Note: watchdog] @param world_ranks  of the members, by rank
  void publish(const std::vector<int>& world_ranks) { recorder_.publish(world_ranks); }

  /// The collective that is being enqueued.
  struct Call {
    Collective kind = Collective::barrier;
    std::string label;
    std::int64_t bytes = 0;     ///< of the unsharded side
    std::int64_t sequence = 0;  ///< counts the group's collectives from 1
  };

  /// Ends collectives in progress, after abort(). Any thread.
  virtual void end_waiting(const std::string& /*why*/) {}
  /// Set by abort().
  [[nodiscard]] const std::atomic<bool>& abort_flag() const { return is_aborted_; }
  /// Called repeatedly while a stream waits for other members of shared memory. Makes progress on messages that only the
  /// backend's own calls advance: those members may be waiting for them. @throws if a member has left
  virtual void while_waiting(const Call& /*call*/) const {}

  // Backends enqueue with one submit(); arguments are already checked. Not called for groups of one rank (the base class copies
  // where needed) or for empty tensors.
  virtual void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) = 0;
  virtual void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) = 0;
  virtual void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) = 0;
  virtual void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) = 0;
  virtual void enqueue_broadcast(Stream& s, TensorView data, int root) = 0;
  virtual void enqueue_barrier(Stream& s) = 0;
  virtual std::unique_ptr<ProcessGroup> make_subgroup(int index, std::span<const int> members, std::string name);

  /// Copies bytes within the device's memory.
  virtual void enqueue_copy(Stream& s, const char* what, ConstTensorView src, TensorView dst) const;

  [[nodiscard]] const Call& call() const { return call_; }
  /// Records the end of a collective that did not end through submit().
  void note_end(const Call& call, bool succeeded, std::int64_t busy_ns);
  /// Submits the work of the collective that is being enqueued: records and times it, and adds describe(call) to an MpiError.
  /// `work` gets the call.
  void submit(Stream& s, std::initializer_list<Access> accesses, std::function<void(const Call&)> work);
  /// "group 'shard' (rank 1 of 4), reduce_scatter 'h.3' of 4096 bytes"
  [[nodiscard]] std::string describe(const Call& call) const;

 private:
  void begin(Collective kind, const char* label, std::int64_t bytes);
  void run(const Call& call, const std::function<void(const Call&)>& work);
  void require_peers(const Call& call) const;
  void check_shards(Collective kind, const char* label, ConstTensorView shard, ConstTensorView full) const;
  void copy_single(Stream& s, Collective kind, ConstTensorView src, TensorView dst) const;
  void check_data(Collective kind, const char* label, ConstTensorView data) const;
  void check_summable(Collective kind, const char* label, DType dtype) const;

  int rank_;
  int num_ranks_;
  std::string name_;
  bool is_alone_;
  std::atomic<bool> is_aborted_ = false;
  std::string why_aborted_;  // written before is_aborted_
  std::mutex abort_mutex_;
  CollectiveCounts counts_;
  Call call_;
  FlightRecorder recorder_;
  std::atomic<std::int64_t> busy_ns_{0};
};

}  // namespace mica
