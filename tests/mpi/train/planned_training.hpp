// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

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
        model(ShardedModel::make(config, device)),
        log_interval(config.train.log_interval) {
    const data::BatchPlan batch = data::make_batch_plan(config.train.micro_batch, world.num_ranks(), config.train.global_batch);
    plan = make_start_plan(config, device, model, batch);
    model.root->initialize(1);
    runner.emplace(config, model, datasets.train, batch, device.mesh->rank());
  }
  /// Reads figures when a run does: every train.log_interval steps and after the last.
  void run(std::int64_t first_step, std::int64_t last_step) {
    std::vector<StepFigures> unread;
    for (std::int64_t step = first_step; step <= last_step; ++step) {
      unread.push_back(runner->run(step, 1e-3));
      if (step % log_interval != 0 && step != last_step) continue;
      std::vector<const StepFigures*> steps;
      for (const StepFigures& each : unread) steps.push_back(&each);
      (void)mean_losses(model, steps);
      unread.clear();
    }
    model.context.compute.synchronize();
  }

  Device device;
  Datasets datasets;
  ShardedModel model;
  StartPlan plan;
  std::int64_t log_interval;
  std::optional<StepRunner> runner;
};

}  // namespace mica::train
