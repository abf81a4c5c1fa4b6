// SPDX-License-Identifier: Apache-2.0
// Checkpoints move between the CPU and a GPU bit for bit. The same sources run on a GPU (label gpu) and on an emulated one.
#include <atomic>

#include <gtest/gtest.h>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/optim/optimizer.hpp"
#include "mica/tensor/fetch.hpp"

#include "support/parity.hpp"
#include "support/temporary_folder.hpp"
#include "support/tested_gpu.hpp"
#include "testing/local_group.hpp"

#if MICA_GPU_IS_EMULATED
#include "cuda_emulation/cuda_emulation.hpp"
#endif

namespace mica::testing {
namespace {

#if MICA_GPU_IS_EMULATED
/// Pool::copy()s of the process.
std::int64_t num_copies_now() { return cuda_emulation::calls("cudaMemcpy"); }
#else
std::int64_t num_copies_now() { return 0; }  // nobody counts
#endif

using Bits = std::vector<std::vector<float>>;

/// One rank's sharded model and optimizer on a device.
class Trained {
 public:
  Trained(std::unique_ptr<ProcessGroup> host, TestedDevice device, fsdp::CpuOffload offload = fsdp::CpuOffload::none)
      : device_(std::move(device)),
        stream_(make_cpu_stream("host", StreamMode::inlined)),
        comm_group_(host->duplicate("checkpoint")),
        comm_(make_group_comm(*comm_group_, *stream_)),
        pool_(device_.make_pool()),
        pinned_(pool_->device() == DeviceKind::cuda ? make_pinned_pool() : nullptr),
        kernels_(device_.make_kernels(*pool_)) {
    const std::vector<RankPlace> places = places_of(host->num_ranks());
    const MeshGeometry geometry = MeshGeometry::make(places, {});
    mesh_ = std::make_unique<Mesh>(device_.make_group(std::move(host)), geometry, places);
    device_mesh_ =
        std::make_unique<fsdp::DeviceMesh>(*mesh_, *pool_, *kernels_, fsdp::Streams::make(StreamMode::inlined, device_.make_stream));
    model_ = make_parity_model();
    fsdp::Options options;
    options.cpu_offload = offload;
    root_ = &fsdp::auto_wrap(*model_, *device_mesh_, options, fsdp::wrap_types({"gpt2_block"}));
    root_->initialize(1);
    optimizer_ = optim::make_adamw(*root_, {});
    optimizer_->allocate_state();
  }

  /// Random numbers everywhere but in the padding.
  void fill(std::uint64_t seed) {
    root_->initialize(seed);
    Stream& compute = device_mesh_->compute();
    for (const optim::StateShard& state : optimizer_->state()) {
      for (const fsdp::Piece& piece : state.storage->layout().pieces(state.storage->shard_rank())) {
        const std::string& name = state.storage->parameters()[piece.parameter].full_name;
        const RandomKey key{.seed = seed, .name_hash = hash_name(name + state.kind)};
        for (std::int64_t i = 0; i < piece.num_runs(); ++i) {
          const fsdp::Run run = piece.run(i);
          kernels_->fill_normal(compute, state.data.slice(run.offset, run.numel()), key, run.begin, 1.0);
        }
      }
    }
    optimizer_->set_num_steps(static_cast<std::int64_t>(seed));
  }
  [[nodiscard]] Bits bits() {
    Bits all;
    for (const fsdp::Unit* unit : root_->units()) {
      if (unit->storage()) all.push_back(fetch<float>(*kernels_, device_mesh_->compute(), unit->storage()->master()));
    }
    for (const optim::StateShard& state : optimizer_->state()) {
      all.push_back(fetch<float>(*kernels_, device_mesh_->compute(), state.data));
    }
    return all;
  }
  [[nodiscard]] checkpoint::SaveState state(std::int64_t step) {
    return {.root = root_,
            .optimizer = optimizer_.get(),
            .run_id = "r",
            .step = step,
            .tokens = step,
            .seed = 1,
            .omp_threads = 1,
            .model = {{"type", "parity"}},
            .config = "[run]\nname=test\n"};
  }
  std::string save(const std::string& folder, std::int64_t step) { return checkpoint::save(folder, state(step), *comm_, {}).path; }
  /// Random numbers of `next` are there when the save goes on in the background.
  std::string save_in_background(const std::string& folder, std::int64_t step, std::uint64_t next) {
    checkpoint::AsyncSaver saver(make_group_comm(*comm_group_, *stream_), pinned_ ? *pinned_ : *pool_);
    std::atomic<bool> is_filled{false};
    checkpoint::SaveOptions options;
    options.at_point = [&](std::string_view point) {
      if (point == "metadata written") is_filled.wait(false);
    };
    const std::int64_t copies_before = num_copies_now();
    saver.start(folder, state(step), *comm_, options);
    fill(next);
    device_mesh_->compute().synchronize();
    is_filled = true;
    is_filled.notify_all();
    saver.wait();
    EXPECT_EQ(num_copies_now(), copies_before) << "what is written in the background is the host's";
    return saver.take_finished()->path;
  }
  void load(const std::string& path) {
    (void)checkpoint::load(path, checkpoint::open_checkpoint(path, *comm_), {root_, optimizer_.get(), 1}, *comm_);
  }

 private:
  static std::vector<RankPlace> places_of(int num_ranks) {
    std::vector<RankPlace> places;
    for (int r = 0; r < num_ranks; ++r) places.push_back({r, "host", 0, r});
    return places;
  }

  TestedDevice device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<ProcessGroup> comm_group_;
  std::unique_ptr<HostComm> comm_;
  std::unique_ptr<Pool> pool_, pinned_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<fsdp::DeviceMesh> device_mesh_;
  std::unique_ptr<nn::Module> model_;
  fsdp::Root* root_ = nullptr;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

class GpuCheckpoint : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { ASSERT_FALSE(list_gpus().empty()) << why_no_gpu(); }
};

TEST_P(GpuCheckpoint, MovesBetweenCpuAndGpuBitForBit) {
  const test::TemporaryFolder folder;
  run_local_ranks(GetParam(), [&](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    auto other = host->duplicate("other");
    Trained cpu(std::move(host), {}), gpu(std::move(other), staged_gpu());
    cpu.fill(3);
    const Bits third = cpu.bits();
    gpu.load(cpu.save(folder.path(), 3));
    EXPECT_EQ(gpu.bits(), third);
    gpu.fill(4);
    const Bits fourth = gpu.bits();
    EXPECT_NE(fourth, third);
    cpu.load(gpu.save(folder.path(), 4));
    EXPECT_EQ(cpu.bits(), fourth);
    gpu.fill(5);
    const Bits fifth = gpu.bits();
    cpu.load(gpu.save_in_background(folder.path(), 5, 6));
    EXPECT_EQ(cpu.bits(), fifth);
  });
}

TEST_P(GpuCheckpoint, OtherRanksAndOffloadedMasters) {
  const test::TemporaryFolder folder;
  const int num_ranks = GetParam();
  std::string path;
  run_local_ranks(num_ranks, [&](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    const bool is_first = host->rank() == 0;
    Trained gpu(std::move(host), staged_gpu(), fsdp::CpuOffload::parameters);
    gpu.fill(3);
    const std::string saved = gpu.save(folder.path(), 3);
    if (is_first) path = saved;
  });
  run_local_ranks(num_ranks + 1, [&](std::unique_ptr<ProcessGroup> host) {
    use_gpu(0);
    auto other = host->duplicate("other");
    Trained cpu(std::move(host), {}), gpu(std::move(other), staged_gpu());
    cpu.fill(3);
    gpu.load(path);
    EXPECT_EQ(gpu.bits(), cpu.bits());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuCheckpoint, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace mica::testing
