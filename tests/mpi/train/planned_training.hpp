// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "mica/train/start_plan.hpp"
#include "mica/train/step_runner.hpp"

#include "support/mpi_test.hpp"

namespace mica::train {

/// A config's training, planned and then initialized, as the trainer does.
struct PlannedTraining {
  /// @param config  outlives it
  PlannedTraining(const mpi::Communicator& world, const Config& config)
      : device(Device::make(config, testing::session(), world, Logger())),
        datasets(Datasets::open(config)),
        model(ShardedModel::make(config, device)) {
    const data::BatchPlan batch = data::make_batch_plan(config.train.micro_batch, world.num_ranks(), config.train.global_batch);
    plan = make_start_plan(config, device, model, batch);
    model.root->initialize(1);
    runner.emplace(config, model, datasets.train, batch, device.mesh->rank());
  }
  void run(std::int64_t first_step, std::int64_t last_step) {
    for (std::int64_t step = first_step; step <= last_step; ++step) (void)runner->run(step, 1e-3);
    model.context.compute.synchronize();
  }

  Device device;
  Datasets datasets;
  ShardedModel model;
  StartPlan plan;
  std::optional<StepRunner> runner;
};

}  // namespace mica::train
