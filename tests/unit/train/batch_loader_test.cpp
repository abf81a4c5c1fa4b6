// SPDX-License-Identifier: Apache-2.0
// A rank's micro-batches of any dataset, read ahead and not overwritten too early.
#include "mica/train/batch_loader.hpp"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "testing/local_group.hpp"
#include "unit/device/gate.hpp"

namespace mica::train {
namespace {

using Ids = std::vector<std::int64_t>;

/// Sample i is the number i; one of them cannot be read, which a user's dataset may tell in an exception of its own.
class Numbers final : public data::Dataset {
 public:
  explicit Numbers(std::int64_t count, std::int64_t unreadable = -1) : count_(count), unreadable_(unreadable) {}
  [[nodiscard]] std::int64_t num_samples() const override { return count_; }
  [[nodiscard]] const std::vector<data::SampleTensor>& tensors() const override { return tensors_; }
  void read(std::int64_t sample, std::span<const std::span<std::byte>> out) const override {
    if (sample == unreadable_) throw std::runtime_error("a sample cannot be read");
    const auto value = static_cast<float>(sample);
    std::memcpy(out[0].data(), &value, sizeof value);
  }
  [[nodiscard]] std::string fingerprint() const override { return std::to_string(count_); }

 private:
  std::int64_t count_, unreadable_;
  std::vector<data::SampleTensor> tensors_{{"number", Shape{}, DType::f32}};
};

/// A rank alone, on a stream that works beside the host.
struct Rank {
  explicit Rank(std::unique_ptr<ProcessGroup> world)
      : mesh(std::move(world), {.world_size = 1, .shard_size = 1, .replicas = 1}),
        device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::threaded)),
        context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels} {}

  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<Kernels> kernels = make_cpu_kernels(*pool);
  Mesh mesh;
  fsdp::DeviceMesh device_mesh;
  nn::Context context;
};

data::Sampler in_order(const data::Dataset& dataset) { return {dataset.num_samples(), data::DataOrder::sequential, 0}; }

float first_of(const nn::Tensors& batch) { return *batch.at(0).view().as<float>(); }

TEST(BatchLoader, GivesARankItsRoundsOfAStep) {
  run_local_ranks(1, [](auto world) {
    Rank rank(std::move(world));
    const Numbers numbers(100);
    const data::BatchPlan plan{.micro_batch = 2, .accumulation = 2, .num_ranks = 3};  // 12 samples a step
    BatchLoader batches(rank.context, rank.device_mesh, numbers, in_order(numbers), plan, /*data_rank=*/1);
    const nn::Tensors batch = batches.load(2, 1);
    EXPECT_EQ(batch.at(0).shape(), (Shape{2}));
    EXPECT_EQ(first_of(batch), 12 + 6 + 2);
    EXPECT_EQ(rank.context.sequences, (Ids{20, 21}));
    EXPECT_EQ(first_of(batches.load(2, 0)), 12 + 2);
    EXPECT_EQ(rank.context.sequences, (Ids{14, 15}));
    EXPECT_EQ(first_of(batches.load(1, 0)), 2) << "steps may be asked for in any order";
  });
}

TEST(BatchLoader, KeepsABatchUntilTheDeviceIsDoneWithIt) {
  run_local_ranks(1, [](auto world) {
    Rank rank(std::move(world));
    const Numbers numbers(100);
    BatchLoader batches(rank.context, rank.device_mesh, numbers, in_order(numbers), {.micro_batch = 1}, 0);
    test::Gate gate;
    float seen = -1;
    const nn::Tensors batch = batches.load(1, 0);
    rank.context.compute.submit("use", {reads(batch[0].view())}, [&] {
      gate.pass();
      seen = first_of(batch);
    });
    EXPECT_EQ(first_of(batches.load(2, 0)), 1);
    std::jthread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
    EXPECT_EQ(first_of(batches.load(3, 0)), 2);  // in the memory of step 1, which waits for it
    rank.context.compute.synchronize();
    EXPECT_EQ(seen, 0) << "the device read another step's batch";
  });
}

TEST(BatchLoader, TellsOfABadSampleWhenItsStepComes) {
  run_local_ranks(1, [](auto world) {
    Rank rank(std::move(world));
    const Numbers numbers(10, /*unreadable=*/1);
    BatchLoader batches(rank.context, rank.device_mesh, numbers, in_order(numbers), {.micro_batch = 1}, 0);
    EXPECT_EQ(first_of(batches.load(1, 0)), 0);
    EXPECT_NO_THROW(batches.read_ahead(2));
    EXPECT_THROW(static_cast<void>(batches.load(2, 0)), std::runtime_error);
    EXPECT_EQ(first_of(batches.load(3, 0)), 2);
  });
}

}  // namespace
}  // namespace mica::train
