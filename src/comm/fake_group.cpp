// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/fake_group.hpp"

#include <cstring>
#include <numeric>

#include "mica/core/error.hpp"

namespace mica {
namespace {

void copy_unless_same(ConstTensorView src, TensorView dst) {
  if (src.data != dst.data) std::memcpy(dst.data, src.data, static_cast<std::size_t>(src.bytes()));
}

class FakeGroup final : public ProcessGroup {
 public:
  using Members = std::shared_ptr<const std::vector<int>>;

  FakeGroup(int rank, Members members, std::string name, FakeRecorder* recorder)
      : ProcessGroup(rank, static_cast<int>(members->size()), std::move(name)), members_(std::move(members)), calls_(recorder) {}

  std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<FakeGroup>(rank(), members_, std::move(name), calls_);
  }
  std::unique_ptr<ProcessGroup> split(int /*color*/, int /*key*/, std::string name) override {
    throw ConfigError(
        fmt::format("split '{}' of the fake group '{}': its other ranks do not exist, so their colors are unknown; use subgroup()", name,
                    this->name()));
  }
  [[nodiscard]] double busy_ms() const override { return 0; }

 protected:
  std::unique_ptr<ProcessGroup> make_subgroup(int index, std::span<const int> members, std::string name) override {
    auto of_first = std::make_shared<std::vector<int>>();
    for (const int member : members) of_first->push_back((*members_)[static_cast<std::size_t>(member)]);
    return std::make_unique<FakeGroup>(index, std::move(of_first), std::move(name), calls_);
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
};

}  // namespace

std::unique_ptr<ProcessGroup> make_fake_group(int rank, int num_ranks, FakeRecorder* recorder) {
  require<ConfigError>(num_ranks >= 1, "a fake group of {} ranks; expected at least one", num_ranks);
  auto members = std::make_shared<std::vector<int>>(static_cast<std::size_t>(num_ranks));
  std::iota(members->begin(), members->end(), 0);
  return std::make_unique<FakeGroup>(rank, std::move(members), "fake", recorder);
}

}  // namespace mica
