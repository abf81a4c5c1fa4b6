// SPDX-License-Identifier: Apache-2.0
#include "async_checkpoint.hpp"

#include <filesystem>
#include <optional>
#include <vector>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/train/resume_rules.hpp"
#include "mica/train/step_runner.hpp"

#include "bench_model.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

/// Times a copy of all shards into memory that has been touched before.
double time_copy(const mpi::Communicator& world, const Device& device, const ShardedModel& model) {
  std::vector<ConstTensorView> shards;
  for (const fsdp::Unit* unit : model.root->units()) {
    if (unit->storage()) shards.push_back(unit->storage()->master());
  }
  for (const optim::StateShard& state : model.optimizer->state()) shards.push_back(state.data);
  std::vector<Buffer> copies;
  for (const ConstTensorView& shard : shards) {
    copies.push_back(device.pool->allocate(shard.bytes(), MemoryRole::snapshot, device.device_mesh->compute()));
  }
  const auto copy = [&] {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      device.kernels->copy(device.device_mesh->compute(), shards[i], {copies[i].data(), shards[i].shape, DType::f32});
    }
    device.device_mesh->compute().synchronize();
  };
  copy();
  return timed_together(world, copy);
}

}  // namespace

AsyncFigures measure_async(const App& app, const Config& config, Device& device, ShardedModel& model, const std::string& run_folder,
                           const AsyncOptions& options) {
  const mpi::Communicator& world = app.world;
  std::optional<Datasets> datasets;
  app.comm.agree([&] {
    const RandomTokenFile file(config, world.num_ranks(), world.rank());
    Config with_data = config;
    with_data.data.train = {file.path()};
    datasets.emplace(Datasets::open(with_data));
  });
  const data::BatchPlan plan = data::make_batch_plan(config.train.micro_batch, world.num_ranks(), config.train.global_batch);
  StepRunner runner(config, model, datasets->train, plan, device.mesh->rank());
  const mpi::Communicator background = world.duplicate();
  checkpoint::AsyncSaver saver(make_mpi_comm(background), *device.pool);
  saver.reserve(*model.root, model.optimizer.get());
  const std::string run_id = world.broadcast_string(checkpoint::make_run_id(), 0);

  std::int64_t step = 0;
  const auto time_step = [&] {
    return timed_together(world, [&] {
      static_cast<void>(runner.run(++step, config.optim.lr));
      model.context.compute.synchronize();
    });
  };
  time_step();
  std::vector<double> copy_s, stall_s, write_s, step_s, overlapped_s;
  for (std::int64_t r = 0; r < options.repeats; ++r) {
    copy_s.push_back(time_copy(world, device, model));
    for (std::int64_t i = 0; i < options.steps; ++i) step_s.push_back(time_step());
    const checkpoint::SaveState state{.root = model.root,
                                      .optimizer = model.optimizer.get(),
                                      .run_id = run_id,
                                      .step = step,
                                      .seed = config.run.seed,
                                      .omp_threads = device.num_threads,
                                      .model = model_description(config),
                                      .config = to_ini(config)};
    stall_s.push_back(timed_together(world, [&] { saver.start(run_folder, state, app.comm); }));
    std::optional<checkpoint::SaveReport> report;
    while (!report) {
      const double seconds = time_step();
      const bool was_written = on_every_rank(world, !saver.is_under_way());
      if (was_written) {  // the end of this step ran without the write beside it
        saver.wait();
        report = saver.take_finished();
        if (overlapped_s.size() == static_cast<std::size_t>(r)) overlapped_s.push_back(seconds);
      } else {
        overlapped_s.push_back(seconds);
      }
    }
    write_s.push_back(slowest(world, report->total_ms * 1e-3));
    if (world.rank() == 0) std::filesystem::remove_all(report->path);
    world.barrier();
  }
  return {median(copy_s), median(stall_s), median(write_s), median(step_s), median(overlapped_s)};
}

}  // namespace mica::train::bench
