// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/fake_group.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>

#include <sys/mman.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/device/block_memory.hpp"

namespace mica {
namespace {

void copy_unless_same(ConstTensorView src, TensorView dst) {
  if (src.data != dst.data) std::memcpy(dst.data, src.data, static_cast<std::size_t>(src.bytes()));
}

/// Zeros that take memory only where they are written: the members' progress and this rank's part. The system counts what could be written.
std::shared_ptr<std::byte> memory_of(const PartsShape& shape) {
  const auto size = static_cast<std::size_t>(shape.begin_of(shape.num_ranks));
  const auto make_writable = [](std::byte* begin, std::byte* end) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    return mprotect(reinterpret_cast<void*>(first), reinterpret_cast<std::uintptr_t>(end) - first,  // NOLINT(performance-no-int-to-ptr)
                    PROT_READ | PROT_WRITE) == 0;
  };
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require<IoError>(mapped != MAP_FAILED, "cannot map {} bytes for a plan of memory that ranks share: {}", size, errno_text(errno));
  const std::shared_ptr<std::byte> memory{static_cast<std::byte*>(mapped), [size](std::byte* begin) { munmap(begin, size); }};
  require<IoError>(make_writable(memory.get(), memory.get() + shape.begin_of(0)) &&
                       make_writable(memory.get() + shape.begin_of(shape.rank), memory.get() + shape.begin_of(shape.rank + 1)),
                   "cannot make {} bytes writable for a plan of memory that ranks share: {}",
                   shape.begin_of(shape.rank + 1) - shape.begin_of(shape.rank), errno_text(errno));
  return memory;
}

class FakeGroup final : public ProcessGroup {
 public:
  using Members = std::shared_ptr<const std::vector<int>>;

  using Options = std::shared_ptr<const FakeGroupOptions>;

  /// @param options  of the ranks that `members` names
  FakeGroup(int rank, Members members, std::string name, FakeRecorder* recorder, Options options)
      : ProcessGroup(rank, static_cast<int>(members->size()), std::move(name)),
        members_(std::move(members)),
        calls_(recorder),
        options_(std::move(options)) {}

  std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<FakeGroup>(rank(), members_, std::move(name), calls_, options_);
  }
  std::unique_ptr<ProcessGroup> split(int /*color*/, int /*key*/, std::string name) override {
    throw ConfigError(
        fmt::format("split '{}' of the fake group '{}': its other ranks do not exist, so their colors are unknown; use subgroup()", name,
                    this->name()));
  }
  [[nodiscard]] double busy_ms() const override { return 0; }
  [[nodiscard]] bool shares_memory() const override {
    if (options_->nodes.empty() || num_ranks() == 1) return false;
    const auto node_of = [&](int member) { return options_->nodes[static_cast<std::size_t>(member)]; };
    return std::ranges::all_of(*members_, [&](int member) { return node_of(member) == node_of(members_->front()); });
  }
  Buffer allocate(Pool& pool, std::int64_t bytes, MemoryRole role, Stream& home) override {
    auto* blocks = dynamic_cast<BlockMemory*>(&pool);
    if (blocks == nullptr || num_ranks() == 1 || bytes == 0 || bytes < options_->own_blocks_from) return pool.allocate(bytes, role, home);
    return blocks->allocate_block(bytes, role, home);
  }
  SharedParts allocate_parts(Pool& pool, std::int64_t numel, DType dtype, MemoryRole role, Stream& home) override {
    if (!shares_memory() || numel == 0) return ProcessGroup::allocate_parts(pool, numel, dtype, role, home);
    const PartsShape shape{.rank = rank(), .num_ranks = num_ranks(), .numel = numel, .dtype = dtype};
    SharedParts parts = share_parts(memory_of(shape), shape, pool, role, home);
    for (PartProgress& member : parts.members) {
      member.written = std::numeric_limits<std::uint64_t>::max();
      member.released = std::numeric_limits<std::uint64_t>::max();
    }
    return parts;
  }

 protected:
  std::unique_ptr<ProcessGroup> make_subgroup(int index, std::span<const int> members, std::string name) override {
    auto of_first = std::make_shared<std::vector<int>>();
    for (const int member : members) of_first->push_back((*members_)[static_cast<std::size_t>(member)]);
    return std::make_unique<FakeGroup>(index, std::move(of_first), std::move(name), calls_, options_);
  }

  // The accesses are those of a real collective, for the checking stream.
  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    note(s, full.dtype);
    const TensorView own = full.slice(rank() * shard.numel(), shard.numel());
    submit(s, {reads(shard), writes(full)}, [shard, own](const Call&) { copy_unless_same(shard, own); });
  }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    note(s, full.dtype);
    const ConstTensorView own = full.slice(rank() * shard.numel(), shard.numel());
    submit(s, {reads(full), writes(shard)}, [shard, own](const Call&) { copy_unless_same(own, shard); });
  }
  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp /*op*/) override {
    note(s, data.dtype);
    submit(s, {reads(data), writes(data)}, [](const Call&) {});
  }
  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    note(s, sent.dtype);
    const std::int64_t numel = sent.numel() / num_ranks();
    const ConstTensorView own = sent.slice(rank() * numel, numel);
    const TensorView place = received.slice(rank() * numel, numel);
    submit(s, {reads(sent), writes(received)}, [own, place](const Call&) { copy_unless_same(own, place); });
  }
  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    note(s, data.dtype);
    submit(s, {root == rank() ? reads(data) : writes(data)}, [](const Call&) {});
  }
  void enqueue_barrier(Stream& s) override {
    note(s, DType::u8);
    submit(s, {}, [](const Call&) {});
  }

 private:
  void note(Stream& s, DType dtype) {
    if (!calls_) return;
    const FakeCall made{call().kind, call().label, call().bytes, name(), dtype, members_};
    calls_->calls.push_back(made);
    if (calls_->on_call) calls_->on_call(made, s);
  }

  Members members_;
  FakeRecorder* calls_;
  Options options_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_fake_group(int rank, int num_ranks, FakeRecorder* recorder, FakeGroupOptions options) {
  require<ConfigError>(num_ranks >= 1, "a fake group of {} ranks; expected at least one", num_ranks);
  require<ConfigError>(options.nodes.empty() || std::ssize(options.nodes) == num_ranks, "a fake group of {} ranks with the nodes of {}",
                       num_ranks, options.nodes.size());
  auto members = std::make_shared<std::vector<int>>(static_cast<std::size_t>(num_ranks));
  std::iota(members->begin(), members->end(), 0);
  return std::make_unique<FakeGroup>(rank, std::move(members), "fake", recorder,
                                     std::make_shared<const FakeGroupOptions>(std::move(options)));
}

}  // namespace mica
