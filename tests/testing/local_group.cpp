// SPDX-License-Identifier: Apache-2.0
#include "testing/local_group.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "mica/core/rounding.hpp"
#include "mica/tensor/host_math.hpp"

#include "testing/local_make.hpp"

namespace mica {
namespace {

/// Elements [begin, end) of rank r when `numel` elements are divided as evenly as possible.
struct Span {
  std::int64_t begin;
  std::int64_t numel;
};
Span even_slice(std::int64_t numel, int rank, int num_ranks) {
  const std::int64_t begin = numel * rank / num_ranks;
  return {begin, numel * (rank + 1) / num_ranks - begin};
}

const std::byte* at(const void* data, std::int64_t element, DType dtype) {
  return static_cast<const std::byte*>(data) + element * dtype_bytes(dtype);
}
std::byte* at(void* data, std::int64_t element, DType dtype) { return static_cast<std::byte*>(data) + element * dtype_bytes(dtype); }
void copy_unless_same(const void* src, void* dst, std::int64_t bytes) {
  if (src != dst && bytes > 0) std::memcpy(dst, src, static_cast<std::size_t>(bytes));
}

/// At a page's begin.
std::shared_ptr<std::byte> zeroed_memory(std::int64_t bytes) {
  constexpr std::size_t kPage = 4096;
  const auto rounded = round_up(static_cast<std::size_t>(bytes), kPage);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
  std::memset(memory, 0, rounded);
  return {memory, std::free};
}

/// Every rank publishes its arguments, meets the others, then reads their memory directly. Each rank writes only memory
/// that nobody reads in that phase, so no staging is needed: in an all-reduce rank r folds slice r of everybody into its
/// own slice r, which is the only slice of its data that it alone reads; after that everybody copies the other slices.
class LocalGroup final : public ProcessGroup {
 public:
  LocalGroup(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalShared> shared, int rank, std::string name)
      : ProcessGroup(rank, static_cast<int>(shared->world_ranks.size()), std::move(name), world->options().communicates_alone),
        world_(std::move(world)),
        shared_(std::move(shared)) {}

  ~LocalGroup() override {
    // Every collective that this rank took part in is over, so whoever still waits here to meet it would wait forever.
    const bool has_failed = std::uncaught_exceptions() > 0;
    const std::string reason =
        fmt::format("rank {} {} group '{}'", shared_->world_ranks[index(rank())], has_failed ? "failed and left" : "has left", name());
    if (has_failed) {
      close(reason);
    } else {
      shared_->stream_barrier.leave(reason);
      shared_->host_barrier.leave(reason);
    }
  }

  std::unique_ptr<ProcessGroup> duplicate(std::string name) override { return split(0, rank(), std::move(name)); }

  std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) override {
    const std::string what = fmt::format("split '{}' of group '{}'", name, this->name());
    require<ConfigError>(color >= 0, "{}: color {}; expected 0 or more", what, color);
    LocalShared::Split& mine = shared_->splits[index(rank())];
    mine = {color, key, nullptr};
    shared_->host_barrier.arrive(rank(), what);
    std::vector<int> members;
    for (int r = 0; r < num_ranks(); ++r) {
      if (shared_->splits[index(r)].color == color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return shared_->splits[index(a)].key < shared_->splits[index(b)].key; });
    if (members.front() == rank()) {
      std::vector<int> world_ranks;
      for (const int r : members) world_ranks.push_back(shared_->world_ranks[index(r)]);
      mine.created = world_->make_shared(std::move(world_ranks));
    }
    shared_->host_barrier.arrive(rank(), what);
    const std::shared_ptr<LocalShared> created = shared_->splits[index(members.front())].created;
    shared_->host_barrier.arrive(rank(), what);
    mine.created = nullptr;
    const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
    return std::make_unique<LocalGroup>(world_, created, static_cast<int>(me), std::move(name));
  }

  [[nodiscard]] bool shares_memory() const override { return world_->options().shares_memory && num_ranks() > 1; }

  SharedParts allocate_parts(Pool& pool, std::int64_t numel, DType dtype, MemoryRole role, Stream& home) override {
    if (!shares_memory() || numel == 0) return ProcessGroup::allocate_parts(pool, numel, dtype, role, home);
    const std::string what = fmt::format("parts of {} elements in group '{}'", numel, name());
    const PartsShape shape{.rank = rank(), .num_ranks = num_ranks(), .numel = numel, .dtype = dtype};
    if (rank() == 0) shared_->memory = zeroed_memory(shape.begin_of(num_ranks()));
    shared_->host_barrier.arrive(rank(), what);
    SharedParts parts = share_parts(shared_->memory, shape, pool, role, home);
    shared_->host_barrier.arrive(rank(), what);
    if (rank() == 0) shared_->memory.reset();
    return parts;
  }

 protected:
  void end_waiting(const std::string& why) override { close("the group was aborted: " + why); }
  void while_waiting(const Call& call) const override { shared_->stream_barrier.require_peers(describe(call)); }

  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    submit(s, {reads(shard), writes(full)}, [=, this](const Call& call) {
      const std::int64_t numel = shard.numel();
      meet(call, {.dtype = full.dtype, .numel = full.numel(), .source = shard.data, .target = full.data}, [&] {
        for (int r = 0; r < num_ranks(); ++r) {
          copy_unless_same(peer(r).source, at(full.data, r * numel, full.dtype), shard.bytes());
        }
      });
    });
  }

  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    submit(s, {reads(full), writes(shard)}, [=, this](const Call& call) {
      meet(call, {.dtype = full.dtype, .numel = full.numel(), .source = full.data, .target = shard.data}, [&] {
        fold({rank() * shard.numel(), shard.numel()}, shard.data, full.dtype, ReduceOp::sum);
      });
    });
  }

  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    submit(s, {reads(data), writes(data)}, [=, this](const Call& call) {
      const auto fold_own = [&] {
        const Span own = even_slice(data.numel(), rank(), num_ranks());
        fold(own, at(data.data, own.begin, data.dtype), data.dtype, op);
      };
      const auto copy_others = [&] {
        for (int r = 0; r < num_ranks(); ++r) {
          const Span slice = even_slice(data.numel(), r, num_ranks());
          copy_unless_same(at(peer(r).source, slice.begin, data.dtype), at(data.data, slice.begin, data.dtype),
                           slice.numel * dtype_bytes(data.dtype));
        }
      };
      meet(call, {.dtype = data.dtype, .op = op, .numel = data.numel(), .source = data.data, .target = data.data}, fold_own, copy_others);
    });
  }

  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    submit(s, {reads(sent), writes(received)}, [=, this](const Call& call) {
      const std::int64_t numel = sent.numel() / num_ranks();
      meet(call, {.dtype = sent.dtype, .numel = sent.numel(), .source = sent.data, .target = received.data}, [&] {
        for (int r = 0; r < num_ranks(); ++r) {
          copy_unless_same(at(peer(r).source, rank() * numel, sent.dtype), at(received.data, r * numel, sent.dtype),
                           numel * dtype_bytes(sent.dtype));
        }
      });
    });
  }

  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    submit(s, {root == rank() ? reads(data) : writes(data)}, [=, this](const Call& call) {
      meet(call, {.dtype = data.dtype, .root = root, .numel = data.numel(), .source = data.data, .target = data.data},
           [&] { copy_unless_same(peer(root).source, data.data, data.bytes()); });
    });
  }

  void enqueue_barrier(Stream& s) override {
    submit(s, {}, [this](const Call& call) { meet(call, {}, [] {}); });
  }

 private:
  void close(const std::string& reason) {
    shared_->stream_barrier.close(reason);
    shared_->host_barrier.close(reason);
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] const LocalArguments& peer(int rank) const { return shared_->arguments[index(rank)]; }

  /// Runs the phases with all ranks; nobody begins a phase before all have ended the one before.
  template <class... Phases>
  void meet(const Call& call, LocalArguments mine, const Phases&... phases) {
    mine.kind = call.kind;
    mine.label = call.label;
    shared_->arguments[index(rank())] = std::move(mine);
    shared_->stream_barrier.arrive(rank(), describe(call));
    // From here on every rank is inside, and none may leave before the others have stopped reading its memory.
    try {
      check_equal(call);
    } catch (...) {
      // Every rank finds the same. One meeting, since kinds that differ have different numbers of phases.
      shared_->stream_barrier.finish(rank());
      throw;
    }
    std::exception_ptr error;
    (run_phase(error, phases), ...);
    if (error) std::rethrow_exception(error);
  }

  template <class Phase>
  void run_phase(std::exception_ptr& error, const Phase& phase) {
    try {
      if (!error) phase();
    } catch (...) {
      error = std::current_exception();
    }
    shared_->stream_barrier.finish(rank());
  }

  void check_equal(const Call& call) const {
    for (int r = 1; r < num_ranks(); ++r) {
      if (peer(r).matches(peer(0))) continue;
      throw DesyncError(fmt::format("{}: the ranks make different calls: rank {} {}, but rank {} {}", describe(call),
                                    shared_->world_ranks[0], peer(0).to_string(), shared_->world_ranks[index(r)], peer(r).to_string()));
    }
  }

  /// target = sum or maximum over ranks of that part of their source.
  void fold(Span part, void* target, DType dtype, ReduceOp op) const {
    std::vector<const void*> sources;
    for (int r = 0; r < num_ranks(); ++r) sources.push_back(at(peer(r).source, part.begin, dtype));
    op == ReduceOp::sum ? fold_sum(sources, target, part.numel, dtype) : fold_max(sources, target, part.numel, dtype);
  }

  std::shared_ptr<LocalWorld> world_;
  std::shared_ptr<LocalShared> shared_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_local_group(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalShared> shared, int rank,
                                               std::string name) {
  return std::make_unique<LocalGroup>(std::move(world), std::move(shared), rank, std::move(name));
}

}  // namespace mica
