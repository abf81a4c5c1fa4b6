// SPDX-License-Identifier: Apache-2.0
// What goes away while streams still have work: a run that an error ends in the middle of a step.
#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "mica/fsdp/fully_shard.hpp"
#include "mica/nn/linear.hpp"

#include "testing/checking_stream.hpp"
#include "testing/local_group.hpp"
#include "unit/device/gate.hpp"

namespace mica::fsdp {
namespace {

/// One rank whose groups write down when they end and when their collectives run.
class NotingGroup final : public ProcessGroup {
 public:
  using Note = std::function<void(std::string)>;
  NotingGroup(std::string name, Note note) : ProcessGroup(0, 1, std::move(name), true), note_(std::move(note)) {}
  ~NotingGroup() override { note_("end of " + name()); }
  NotingGroup(const NotingGroup&) = delete;
  NotingGroup& operator=(const NotingGroup&) = delete;

  [[nodiscard]] std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<NotingGroup>(std::move(name), note_);
  }
  [[nodiscard]] std::unique_ptr<ProcessGroup> split(int, int, std::string name) override { return duplicate(std::move(name)); }

 private:
  void enqueue_all_gather(Stream& s, ConstTensorView, TensorView) override { enqueue(s); }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView, TensorView) override { enqueue(s); }
  void enqueue_all_reduce(Stream& s, TensorView, ReduceOp) override { enqueue(s); }
  void enqueue_all_to_all(Stream& s, ConstTensorView, TensorView) override { enqueue(s); }
  void enqueue_broadcast(Stream& s, TensorView, int) override { enqueue(s); }
  void enqueue_barrier(Stream& s) override { enqueue(s); }
  void enqueue(Stream& s) {
    submit(s, {}, [note = note_](const Call& call) { note("run of " + call.label); });
  }
  Note note_;
};

TEST(Lifetime, GroupsOutliveTheWorkThatStreamsHaveForThem) {
  std::mutex mutex;
  std::vector<std::string> notes;
  const auto note = [&](std::string what) {
    const std::lock_guard lock(mutex);
    notes.push_back(std::move(what));
  };
  test::Gate gate;
  std::thread opener;
  {
    const auto pool = make_cpu_pool();
    const auto kernels = make_cpu_kernels(*pool);
    Mesh mesh(std::make_unique<NotingGroup>("world", note), {.world_size = 1, .shard_size = 1, .replicas = 1});
    const DeviceMesh device_mesh(mesh, *pool, *kernels, Streams::make(StreamMode::threaded));
    Stream& unshard = *device_mesh.streams().unshard;
    unshard.submit("gate", {}, [&] { gate.pass(); });
    device_mesh.unshard_group().barrier(unshard, "h.0");
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      gate.open();
    });
  }
  opener.join();
  const auto ran = std::ranges::find(notes, "run of h.0");
  const auto ended = std::ranges::find(notes, "end of shard/unshard");
  ASSERT_NE(ran, notes.end());
  ASSERT_NE(ended, notes.end());
  EXPECT_LT(ran, ended);
}

// A model that goes away behind a forward that nobody has waited for: who gets its memory next waits.
TEST(Lifetime, MemoryOfAUnitIsNotUsedAgainBeforeItsReadersAreDone) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    for (const std::string_view until : {"unshard", "forward", "backward"}) {
      run_local_ranks(2, [&](auto world) {
        HappensBeforeChecker checker;
        {
          const auto pool = make_cpu_pool();
          const auto kernels = make_cpu_kernels(*pool);
          Mesh mesh(std::move(world), {.world_size = 2, .shard_size = 2, .replicas = 1});
          DeviceMesh device_mesh(mesh, *pool, *kernels, Streams::make(mode, [&](std::string name, StreamMode m) {
                                   return checker.wrap(make_cpu_stream(std::move(name), m));
                                 }));
          nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels, .sequences = {}};
          {
            nn::Linear model(5, 7);
            fully_shard(model, device_mesh, {.strategy = Strategy::shard_grad_op});
            root_of(model).initialize(1);
            Tensor x = context.make({3, 5}, DType::f32);
            kernels->fill(context.compute, x, 1.0);
            nn::Record record;
            if (until == "unshard") {
              static_cast<void>(root_of(model).units().front()->unshard());
            } else {
              const nn::Tensors ys = model.forward(context, {x}, &record);
              if (until == "backward") model.backward(context, std::move(record), ys);
            }
          }
          // All of the pool's free memory, on every stream.
          std::vector<Buffer> taken;
          for (Stream* stream : device_mesh.streams().all()) {
            for (int i = 0; i < 20; ++i) {
              taken.push_back(pool->allocate(64, MemoryRole::workspace, *stream));
              stream->submit("next owner", {writes(taken.back().data(), 64)}, [] {});
            }
          }
          for (Stream* stream : device_mesh.streams().all()) stream->synchronize();
        }
        for (const auto& violation : checker.violations()) ADD_FAILURE() << violation.text;
      });
    }
  }
}

}  // namespace
}  // namespace mica::fsdp
