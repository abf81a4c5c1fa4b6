// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/core/log.hpp"
#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"
#include "mica/tensor/openmp.hpp"

namespace mica::fsdp {

/// docs/design.md, The schedule, says what runs on each. compute is the trainer's stream.
struct Streams {
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> pre_unshard;    ///< low-precision casts (and offload copies)
  std::unique_ptr<Stream> unshard;        ///< all-gathers
  std::unique_ptr<Stream> post_backward;  ///< reduce-scatters
  std::unique_ptr<Stream> all_reduce;     ///< replicate axis

  StreamMode mode = StreamMode::threaded;

  using Make = std::function<std::unique_ptr<Stream>(std::string name, StreamMode mode)>;
  static Streams make(StreamMode mode, const Make& make_stream = make_cpu_stream);
  [[nodiscard]] std::array<Stream*, 5> all() const {
    return {pre_unshard.get(), unshard.get(), post_backward.get(), all_reduce.get(), compute.get()};
  }
};

/// Where offloaded shards are stored and stepped (docs/parity.md D9).
struct OffloadTier {
  std::shared_ptr<Stream> stream;    ///< a CPU stream: compute itself if that is one
  std::shared_ptr<Pool> pool;        ///< of host memory, counted separately from DeviceMesh::pool()
  std::shared_ptr<Kernels> kernels;  ///< of that stream
};

/// A mesh together with one rank's device: what fully_shard() shards over. Outlives every module sharded on it.
class DeviceMesh {
 public:
  /// Makes a communicator for each stream that communicates, and connects it. @collective over the mesh
  /// @param mesh, pool, kernels  outlive it.
  DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, Streams streams, Logger logger = {});
  /// Another grid of the same ranks on the same device: units of one root may be on either (docs/parity.md A3). @collective
  DeviceMesh(Mesh& mesh, const DeviceMesh& same_device);
  /// Waits for the streams, whose remaining work may use the groups.
  ~DeviceMesh();
  DeviceMesh(const DeviceMesh&) = delete;
  DeviceMesh& operator=(const DeviceMesh&) = delete;

  /// Aborts all groups, the mesh's included, so that no rank waits for a lost one. Any thread, but not while the host makes
  /// groups (rebuild(), the first neighbour_group()).
  void abort(const std::string& why);
  /// Continues with other ranks: rebuilds the mesh and makes new communicators. Units keep their layouts and shards, so the
  /// shard axis must not change: only whole replicas can be left out. Their root must be idle (Root::abandon_step()); its next
  /// step is compared between ranks as the first one was. Each rank has decided on its own which steps count: the remaining ranks
  /// must compare that (Optimizer::num_steps()) before they continue. @collective over `world`
  /// @throws ConfigError for another shard size, ranks that would get a shard other than the one they hold, or ranks of two replicas
  ///         in one shard group if shard groups share memory
  void rebuild(std::unique_ptr<ProcessGroup> world, MeshGeometry geometry);

  [[nodiscard]] const MeshGeometry& geometry() const { return mesh_.geometry(); }
  [[nodiscard]] Mesh& mesh() const { return mesh_; }
  [[nodiscard]] Pool& pool() const { return pool_; }
  [[nodiscard]] Kernels& kernels() const { return kernels_; }
  [[nodiscard]] const Streams& streams() const { return *streams_; }
  [[nodiscard]] Stream& compute() const { return *streams_->compute; }
  /// OpenMP threads for loops on the other streams: 1 if each stream has a host thread of its own, since the OpenMP threads are then
  /// compute's.
  [[nodiscard]] int side_stream_threads() const { return streams_->mode == StreamMode::threaded ? 1 : openmp_threads(); }
  /// Where units compute.
  [[nodiscard]] DeviceKind device() const { return compute().device(); }
  /// Whether units on both may belong to one root.
  [[nodiscard]] bool shares_device_with(const DeviceMesh& other) const { return streams_ == other.streams_; }
  [[nodiscard]] const OffloadTier& offload() const { return offload_; }
  [[nodiscard]] const Logger& logger() const { return logger_; }

  /// Used on the unshard stream.
  [[nodiscard]] ProcessGroup& unshard_group() const { return *unshard_group_; }
  /// Used on the post_backward stream.
  [[nodiscard]] ProcessGroup& reduce_group() const { return *reduce_group_; }
  /// Used on the all_reduce stream: the replicate axis, and the whole world for a no_shard unit on a sharded mesh.
  [[nodiscard]] ProcessGroup& replicate_group() const { return *replicate_group_; }
  [[nodiscard]] ProcessGroup& all_ranks_group() const { return *all_ranks_group_; }
  /// The group that adds up the gradients of shards cut over `shard_size` ranks.
  [[nodiscard]] ProcessGroup& all_reduce_group(int shard_size) const {
    return shard_size == geometry().shard_size ? replicate_group() : all_ranks_group();
  }
  /// Used on the unshard stream: groups of `num_ranks` neighbouring ranks of the shard axis. Made at the first call, which is
  /// collective. @throws ConfigError unless num_ranks divides the shard axis.
  [[nodiscard]] ProcessGroup& neighbour_group(int num_ranks);
  /// Used on the compute stream while the host waits: for what ranks must agree on in the first step.
  [[nodiscard]] ProcessGroup& agreement_group() const { return *agreement_group_; }
  /// Used on the compute stream: norms and metrics.
  [[nodiscard]] ProcessGroup& shard_norm_group() const { return mesh_.shard(); }
  [[nodiscard]] ProcessGroup& metrics_group() const { return mesh_.world(); }

  /// Milliseconds that this rank's collectives have taken so far, in all groups.
  [[nodiscard]] double communication_ms() const;

 private:
  DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, std::shared_ptr<Streams> streams, Logger logger, OffloadTier offload);
  void make_groups();
  /// Checks that ranks keep their shards, and, if they share memory, the same shard group. @collective @throws as rebuild()
  void check_shards(ProcessGroup& world) const;
  /// All groups, the mesh's included.
  [[nodiscard]] std::vector<ProcessGroup*> groups() const;
  /// Waits for the streams, even if they have failed.
  void drain() const;

  Mesh& mesh_;
  Pool& pool_;
  Kernels& kernels_;
  std::shared_ptr<Streams> streams_;
  Logger logger_;
  OffloadTier offload_;
  std::unique_ptr<ProcessGroup> unshard_group_, reduce_group_, replicate_group_, all_ranks_group_, agreement_group_;
  std::map<int, std::unique_ptr<ProcessGroup>> neighbour_groups_;  // by number of ranks
  double ms_before_rebuild_ = 0;                                   // of communication_ms()
};

}  // namespace mica::fsdp
