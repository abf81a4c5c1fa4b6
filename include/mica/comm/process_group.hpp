#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mica/device/pool.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica {

enum class ReduceOp : std::uint8_t { sum, max };

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier };
inline constexpr std::size_t kNumCollectives = 5;
[[nodiscard]] std::string_view collective_name(Collective kind);

/// Calls and bytes since the group was made. Counted at enqueue.
struct CollectiveCounts {
  std::array<std::int64_t, kNumCollectives> calls{};
  std::array<std::int64_t, kNumCollectives> bytes{};  ///< of the unsharded side
  [[nodiscard]] std::int64_t of(Collective kind) const { return calls[static_cast<std::size_t>(kind)]; }
};

/// Ranks that communicate, in an order of their own. [Note: process groups]
/// Collectives are enqueued on a stream and matched by their order within one group, so each stream that communicates
/// has a group of its own (duplicate()). Sums are folded in rank order, in f32 for low-precision dtypes, so that every
/// backend gives the same bits on every rank. Sizes are checked before any traffic. A failure inside a collective is
/// the stream's sticky error and names group, collective and label.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  /// full [S*P] = concatenation of every rank's shard [P], same dtype; shard may be full's own slice (in place).
  void all_gather(Stream& s, const char* label, ConstTensorView shard, TensorView full);
  /// shard [P] = sum over ranks of their full [S*P], this rank's slice; shard may be full's own slice.
  void reduce_scatter(Stream& s, const char* label, ConstTensorView full, TensorView shard);
  /// In place.
  void all_reduce(Stream& s, const char* label, TensorView data, ReduceOp op);
  /// In place, from `root`.
  void broadcast(Stream& s, const char* label, TensorView data, int root);
  void barrier(Stream& s, const char* label);

  /// The same ranks with a communicator of their own. @collective
  [[nodiscard]] virtual std::unique_ptr<ProcessGroup> duplicate(std::string name) = 0;
  /// Ranks of equal color form a group, ordered by key, then rank. @collective
  [[nodiscard]] virtual std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) = 0;

  /// Storage for a unit (DESIGN section 3, Storage). Default: the pool.
  [[nodiscard]] virtual Buffer allocate(Pool& pool, std::int64_t bytes, MemoryRole role, Stream& home) {
    return pool.allocate(bytes, role, home);
  }

  [[nodiscard]] const CollectiveCounts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }
  /// Host time that streams spent inside collectives so far, in ms (0 for fake). Any thread.
  [[nodiscard]] virtual double busy_ms() const { return 0; }

 protected:
  ProcessGroup(int rank, int num_ranks, std::string name) : rank_(rank), num_ranks_(num_ranks), name_(std::move(name)) {}

  // Backends enqueue; arguments were checked. Not called for groups of one rank (the base copies where needed).
  virtual void enqueue_all_gather(Stream& s, const char* label, ConstTensorView shard, TensorView full) = 0;
  virtual void enqueue_reduce_scatter(Stream& s, const char* label, ConstTensorView full, TensorView shard) = 0;
  virtual void enqueue_all_reduce(Stream& s, const char* label, TensorView data, ReduceOp op) = 0;
  virtual void enqueue_broadcast(Stream& s, const char* label, TensorView data, int root) = 0;
  virtual void enqueue_barrier(Stream& s, const char* label) = 0;

 private:
  void count(Collective kind, std::int64_t bytes);

  int rank_;
  int num_ranks_;
  std::string name_;
  CollectiveCounts counts_;
};

}  // namespace mica
