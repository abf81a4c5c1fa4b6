// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/mpi_group.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "mica/comm/host_comm.hpp"
#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

#include "mpi_broadcast_within.hpp"
#include "mpi_node_transfer.hpp"
#include "mpi_shared_memory.hpp"
#include "mpi_transfer.hpp"

namespace mica {
namespace {

using detail::Slices;

/// Received slices should still be in the cache when they are folded, and messages should not be too short: blocks of 0.5 MiB over all
/// ranks, of at least 64 KiB a slice.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 19;
constexpr std::int64_t kMinSliceBytes = std::int64_t{64} << 10;
std::int64_t block_slice_bytes(int num_ranks) { return std::max(kBlockBytes / num_ranks, kMinSliceBytes); }

/// Blocks of a reduction that are under way at the same time: while one is added up, the next one comes.
constexpr int kBlocksUnderWay = 2;

/// For shorter slices, the staging memory may be too small for one element in each slot of a reduction by node.
constexpr std::int64_t kMinNodeSliceBytes = std::int64_t{8} * kBlocksUnderWay;

/// Elements of one rank's slice in one MPI call without staging.
std::int64_t call_slice_numel(DType dtype, int num_ranks, const MpiGroupOptions& options) {
  return options.max_call_bytes / (num_ranks * dtype_bytes(dtype));
}

/// The same when all ranks' slices are staged and folded, in one of the blocks under way.
std::int64_t staged_slice_numel(DType dtype, int num_ranks, const MpiGroupOptions& options) {
  const std::int64_t limit = std::min(options.max_call_bytes, options.staging_bytes / kBlocksUnderWay) / num_ranks;
  return std::min(block_slice_bytes(num_ranks), limit) / dtype_bytes(dtype);
}

bool is_small_all_reduce(std::int64_t numel, DType dtype, int num_ranks, const MpiGroupOptions& options) {
  const std::int64_t bytes = numel * dtype_bytes(dtype);
  return bytes <= kSmallAllReduceBytes && bytes * num_ranks <= std::min(options.max_call_bytes, options.staging_bytes);
}

/// @param node  MpiGroupOptions::node; if -1, nodes are found by split_node() and numbered by their lowest rank.
NodeMap find_nodes(const mpi::Communicator& comm, int node) {
  if (comm.num_ranks() == 1) return NodeMap({0});
  if (node < 0) node = std::stoi(comm.split_node().broadcast_string(std::to_string(comm.rank()), 0));
  std::vector<int> nodes;
  for (const std::string& of_rank : comm.gather_strings(std::to_string(node))) nodes.push_back(std::stoi(of_rank));
  return NodeMap(nodes);
}

class MpiGroup final : public ProcessGroup {
 public:
  MpiGroup(mpi::Communicator comm, Pool& pool, std::string name, const MpiGroupOptions& options, NodeMap nodes)
      : ProcessGroup(comm.rank(), comm.num_ranks(), std::move(name)),
        comm_(std::move(comm)),
        pool_(pool),
        options_(options),
        nodes_(std::move(nodes)) {
    const std::int64_t least = std::int64_t{8} * num_ranks();
    require<ConfigError>(options.max_call_bytes >= least && options.max_call_bytes <= std::numeric_limits<int>::max() &&
                             options.staging_bytes >= kBlocksUnderWay * least,
                         "group '{}' of {} ranks: max_call_bytes {} and staging_bytes {}; expected at least {} and {}, and max_call_bytes "
                         "at most 2147483647",
                         this->name(), num_ranks(), options.max_call_bytes, options.staging_bytes, least, kBlocksUnderWay * least);
    int level = MPI_THREAD_SINGLE;
    mpi::check(MPI_Query_thread(&level), "MPI_Query_thread");
    any_thread_ = level >= MPI_THREAD_MULTIPLE;
    if (num_ranks() > 1) publish(comm_.world_ranks());
    if (options.shares_memory && num_ranks() > 1) shares_memory_ = comm_.split_node().num_ranks() == num_ranks();
    comm_.leave_unrecorded();  // this group's collectives have a record of their own
  }

  std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<MpiGroup>(comm_.duplicate(), pool_, std::move(name), options_, nodes_);
  }
  std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) override {
    mpi::Communicator part = comm_.split(color, key);
    NodeMap nodes = nodes_.of(part.ranks_in(comm_));
    return std::make_unique<MpiGroup>(std::move(part), pool_, std::move(name), options_, std::move(nodes));
  }
  [[nodiscard]] std::int64_t bytes_to_other_nodes() const override { return bytes_to_other_nodes_; }
  [[nodiscard]] bool shares_memory() const override { return shares_memory_; }
  SharedParts allocate_parts(Pool& pool, std::int64_t numel, DType dtype, MemoryRole role, Stream& home) override {
    if (!shares_memory_ || numel == 0) return ProcessGroup::allocate_parts(pool, numel, dtype, role, home);
    home.synchronize();  // the host communicates now
    comm_.record();
    const PartsShape shape{.rank = rank(), .num_ranks = num_ranks(), .numel = numel, .dtype = dtype};
    auto memory = detail::map_shared_memory(comm_, fmt::format("group '{}' of {} ranks", name(), num_ranks()), shape.begin_of(num_ranks()),
                                            rank() == 0 ? 0 : shape.begin_of(rank()), shape.begin_of(rank() + 1));
    SharedParts parts;
    make_mpi_comm(comm_)->agree([&] { parts = share_parts(std::move(memory), shape, pool, role, home); });
    return parts;
  }
  [[nodiscard]] const mpi::Communicator& comm() const { return comm_; }

 protected:
  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    communicate(s, {reads(shard), writes(full)}, [=, this] {
      const std::int64_t slice_bytes = shard.bytes();
      std::byte* own = static_cast<std::byte*>(full.data) + rank() * slice_bytes;
      if (shard.data != own) std::memcpy(own, shard.data, static_cast<std::size_t>(slice_bytes));
      const std::int64_t step = call_slice_numel(full.dtype, num_ranks(), options_) * dtype_bytes(full.dtype);
      if (goes_by_node(slice_bytes)) {
        return gather_slices_by_node(peers(), full.data, Slices::regular(num_ranks(), 0, slice_bytes, slice_bytes),
                                     std::min(step, block_slice_bytes(num_ranks())));
      }
      for (std::int64_t begin = 0; begin < slice_bytes; begin += step) {
        gather_slices(peers(), full.data, Slices::regular(num_ranks(), begin, slice_bytes, std::min(step, slice_bytes - begin)));
      }
    });
  }

  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    const Buffer staging = allocate_staging(s, full);
    const Reduction reduction = reduction_of(ReduceOp::sum, full.dtype, shard.numel(), staging.bytes());
    void* const received = staging.data();
    communicate(s, {reads(full), writes(received, staging.bytes()), writes(shard)}, [=, this] {
      const std::int64_t element_bytes = dtype_bytes(full.dtype);
      const std::int64_t numel = shard.numel();
      const auto slices_of = [&](std::int64_t begin) {
        const std::int64_t n = std::min(reduction.slice_numel, numel - begin);
        return Slices::regular(num_ranks(), begin * element_bytes, numel * element_bytes, n * element_bytes);
      };
      const auto result_of = [&](std::int64_t begin, const Slices&) { return detail::at(shard.data, begin * element_bytes); };
      reduce_blocks(reduction, full.data, numel, reduction.slice_numel, received, slices_of, result_of,
                    [](const detail::Peers&, const Slices&) {});
    });
  }

  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    const Buffer staging = allocate_staging(s, data);
    const std::int64_t longest = divide_up(data.numel(), num_ranks());
    const Reduction reduction = reduction_of(op, data.dtype, longest, staging.bytes());
    void* const received = staging.data();
    communicate(s, {reads(data), writes(received, staging.bytes()), writes(data)}, [=, this] {
      if (is_small_all_reduce(data.numel(), data.dtype, num_ranks(), options_)) {
        gather_small(peers(), data.data, data.bytes(), received);
        std::vector<const void*> sources;
        for (int r = 0; r < num_ranks(); ++r) sources.push_back(static_cast<std::byte*>(received) + r * data.bytes());
        return detail::fold(op, sources, data.data, data.numel(), data.dtype);
      }
      // Block by block, a reduce-scatter and an all-gather of its slices: each slice is folded by one rank, so all ranks get equal bits.
      const std::int64_t element_bytes = dtype_bytes(data.dtype);
      const std::int64_t step = reduction.slice_numel * num_ranks();
      const auto slices_of = [&](std::int64_t begin) {
        return Slices::even(num_ranks(), begin, std::min(step, data.numel() - begin), element_bytes);
      };
      const auto own_slice = [&](std::int64_t, const Slices& slices) {
        return detail::at(data.data, slices.offset[static_cast<std::size_t>(rank())]);
      };
      const auto gather = [&](const detail::Peers& peers, const Slices& slices) {
        if (goes_by_node(longest * element_bytes)) return gather_slices_by_node(peers, data.data, slices, slices.longest());
        gather_slices(peers, data.data, slices);
      };
      reduce_blocks(reduction, data.data, data.numel(), step, received, slices_of, own_slice, gather);
    });
  }

  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    communicate(s, {reads(sent), writes(received)}, [=, this] {
      const std::int64_t slice_bytes = sent.bytes() / num_ranks();
      const std::int64_t step = call_slice_numel(sent.dtype, num_ranks(), options_) * dtype_bytes(sent.dtype);
      for (std::int64_t begin = 0; begin < slice_bytes; begin += step) {
        swap_slices(peers(), sent.data, received.data,
                    Slices::regular(num_ranks(), begin, slice_bytes, std::min(step, slice_bytes - begin)));
      }
    });
  }

  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    communicate(s, {root == rank() ? reads(data) : writes(data)}, [=, this] {
      for (std::int64_t begin = 0; begin < data.bytes(); begin += options_.max_call_bytes) {
        const std::int64_t bytes = std::min(options_.max_call_bytes, data.bytes() - begin);
        broadcast_bytes(peers(), static_cast<std::byte*>(data.data) + begin, bytes, root);
      }
    });
  }

  void enqueue_barrier(Stream& s) override {
    communicate(s, {}, [this] { wait_for_peers(peers()); });
  }

  // A send may have returned before its message left the process: MPI_Iprobe makes progress on it.
  void while_waiting(const Call& call) const override {
    if (!any_thread_) check_main_thread(call);
    int has_come = 0;
    mpi::check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_.get(), &has_come, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }

 private:
  [[nodiscard]] detail::Peers peers() {
    return {.comm = comm_.get(),
            .rank = rank(),
            .num_ranks = num_ranks(),
            .max_collective_slice_bytes = options_.max_collective_slice_bytes,
            .nodes = nodes_,
            .bytes_to_other_nodes = bytes_to_other_nodes_,
            .is_aborted = options_.can_be_aborted ? &abort_flag() : nullptr};
  }

  /// @param slice_bytes  of the whole slice, not of a block, so that all of a sum is added in one order.
  [[nodiscard]] bool goes_by_node(std::int64_t slice_bytes) const {
    return nodes_.has_neighbors_and_nodes() && slice_bytes > options_.max_collective_slice_bytes && slice_bytes >= kMinNodeSliceBytes;
  }

  /// How a reduction is split into blocks, and its staging into a slot for each block under way.
  struct Reduction {
    detail::Summands summands;
    bool by_node;
    std::int64_t slice_numel;  ///< of a block
    std::int64_t slot_bytes;
  };
  [[nodiscard]] Reduction reduction_of(ReduceOp op, DType dtype, std::int64_t slice_numel, std::int64_t staging_bytes) const {
    const detail::Summands summands{op, dtype};
    if (goes_by_node(slice_numel * dtype_bytes(dtype)) && reduces_better_by_node(nodes_, summands)) {
      const std::int64_t slot_bytes = round_down(staging_bytes / kBlocksUnderWay, dtype_bytes(DType::f32));
      return {summands, true, slot_bytes / node_staging_bytes(nodes_, summands), slot_bytes};
    }
    const std::int64_t block_numel = staged_slice_numel(dtype, num_ranks(), options_);
    return {summands, false, block_numel, block_numel * num_ranks() * dtype_bytes(dtype)};
  }

  /// Reduces a buffer in blocks, which begin at 0, step, 2 step ... up to `numel`; while one is added up, the next one comes.
  /// @param slices_of(begin), result_of(begin, slices)  of the block that begins there
  /// @param then(peers, slices)  what follows for each block
  template <class SlicesOf, class ResultOf, class Then>
  void reduce_blocks(const Reduction& reduction, const void* buffer, std::int64_t numel, std::int64_t step, void* staging,
                     const SlicesOf& slices_of, const ResultOf& result_of, const Then& then) {
    const detail::Peers peers = this->peers();
    struct Block {
      Slices slices;
      std::unique_ptr<detail::PendingReduction> reduction;
    };
    std::array<Block, kBlocksUnderWay> under_way;
    const auto slot_of = [step](std::int64_t begin) { return static_cast<std::size_t>(begin / step % kBlocksUnderWay); };
    const auto begin_block = [&](std::int64_t begin) {
      if (begin >= numel) return;
      const std::size_t slot = slot_of(begin);
      void* const memory = detail::at(staging, static_cast<std::int64_t>(slot) * reduction.slot_bytes);
      const auto begin_it = reduction.by_node ? detail::begin_reduction_by_node : detail::begin_reduction;
      Block& block = under_way[slot];
      block.slices = slices_of(begin);
      block.reduction = begin_it(peers, reduction.summands, buffer, block.slices, memory);
    };
    for (int k = 0; k < kBlocksUnderWay; ++k) begin_block(k * step);
    for (std::int64_t begin = 0; begin < numel; begin += step) {
      Block& block = under_way[slot_of(begin)];
      const Slices slices = std::move(block.slices);
      block.reduction->finish(result_of(begin, slices));
      begin_block(begin + kBlocksUnderWay * step);
      then(peers, slices);
    }
  }

  /// Belongs to `s`, so it may be freed as soon as the collective is enqueued: the next one on this stream gets the same memory;
  /// an owner on another stream waits for `s`.
  Buffer allocate_staging(Stream& s, const ConstTensorView& full) {
    return pool_.allocate(mpi_staging_bytes(call().kind, full.numel(), full.dtype, num_ranks(), options_), MemoryRole::communication, s);
  }

  template <class Work>
  void communicate(Stream& s, std::initializer_list<Access> accesses, Work work) {
    submit(s, accesses, [this, work = std::move(work)](const Call& call) {
      if (!any_thread_) check_main_thread(call);
      work();
    });
  }

  void check_main_thread(const Call& call) const {
    int is_main = 0;
    mpi::check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
    require<ConfigError>(is_main != 0,
                         "{}: this MPI does not grant MPI_THREAD_MULTIPLE, so only its main thread may communicate; "
                         "make the streams that communicate with comm_stream_mode()",
                         describe(call));
  }

  mpi::Communicator comm_;
  Pool& pool_;
  MpiGroupOptions options_;
  NodeMap nodes_;
  std::atomic<std::int64_t> bytes_to_other_nodes_{0};
  bool any_thread_ = false;
  bool shares_memory_ = false;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_mpi_group(mpi::Communicator comm, Pool& pool, std::string name, MpiGroupOptions options) {
  NodeMap nodes = find_nodes(comm, options.node);
  return std::make_unique<MpiGroup>(std::move(comm), pool, std::move(name), options, std::move(nodes));
}

void broadcast_within(ProcessGroup& group, std::span<std::byte> data, int root, std::chrono::milliseconds timeout) {
  if (const auto* over_mpi = dynamic_cast<const MpiGroup*>(&group)) {
    return detail::broadcast_within(over_mpi->comm(), data, root, timeout);
  }
  const auto stream = make_cpu_stream("broadcast", StreamMode::inlined);
  group.broadcast(*stream, "set-up", {data.data(), Shape{std::ssize(data)}, DType::u8}, root);
  stream->synchronize();
}

std::int64_t mpi_staging_bytes(Collective kind, std::int64_t numel, DType dtype, int num_ranks, const MpiGroupOptions& options) {
  if (num_ranks == 1 || numel == 0) return 0;
  if (kind != Collective::reduce_scatter && kind != Collective::all_reduce) return 0;
  const std::int64_t all_bytes = num_ranks * dtype_bytes(dtype);
  if (kind == Collective::all_reduce && is_small_all_reduce(numel, dtype, num_ranks, options)) return numel * all_bytes;
  return std::min(divide_up(numel, num_ranks), kBlocksUnderWay * staged_slice_numel(dtype, num_ranks, options)) * all_bytes;
}

StreamMode comm_stream_mode(const mpi::Session& session, StreamMode wanted) {
  return session.has_thread_multiple() ? wanted : StreamMode::inlined;
}

}  // namespace mica
