// SPDX-License-Identifier: Apache-2.0
#include "mica/train/start_plan.hpp"

#include <algorithm>

#include "mica/train/step_runner.hpp"

namespace mica::train {
namespace {

/// Micro-batches of a step that are run; with more, what the last but one adds is repeated.
constexpr std::int64_t kMostRounds = 4;

/// As in a run that begins with step 1.
DryRun run_rounds(const Config& config, const DryMachine& machine, const data::BatchPlan& batch, std::int64_t rounds) {
  return dry_run(config, machine, {.micro_batch = batch.micro_batch, .accumulation = rounds, .num_ranks = batch.num_ranks},
                 /*num_steps=*/2);
}

/// Adds `times` times what `after` has more than `before`.
void repeat_difference(std::vector<plan::CollectiveVolume>& after, const std::vector<plan::CollectiveVolume>& before, std::int64_t times) {
  for (plan::CollectiveVolume& volume : after) {
    const auto same = [&](const plan::CollectiveVolume& v) { return v.kind == volume.kind && v.group == volume.group; };
    const auto found = std::ranges::find_if(before, same);
    const plan::CollectiveVolume less = found == before.end() ? plan::CollectiveVolume{.kind = volume.kind} : *found;
    volume.calls += times * (volume.calls - less.calls);
    volume.bytes += times * (volume.bytes - less.bytes);
    volume.sent_bytes += times * (volume.sent_bytes - less.sent_bytes);
  }
}

void add_workspace(plan::MemoryLevel& level, std::int64_t bytes) {
  level.total += bytes;
  level.by_role[static_cast<std::size_t>(MemoryRole::workspace)] += bytes;
}

void add_workspace(MemoryStats& memory, std::int64_t bytes) {
  memory.peak += bytes;
  memory.peak_by_role[static_cast<std::size_t>(MemoryRole::workspace)] += bytes;
}

/// StepFigures::losses of micro-batches that were not run.
void add_losses(StartPlan& plan, std::int64_t num_losses) {
  const std::int64_t bytes = num_losses * dtype_bytes(DType::f32);
  add_workspace(plan.memory, bytes);
  plan::StepMemory& step = plan.step_memory;
  for (plan::MemoryLevel* level : {&step.forward_peak, &step.backward_peak, &step.after_backward, &step.optimizer_peak}) {
    add_workspace(*level, bytes);
  }
}

/// The most steps from one reading of figures to the next.
std::int64_t unread_steps(const Config& config, const data::BatchPlan& batch) {
  std::int64_t steps = std::min({config.train.log_interval, most_unread_steps(batch.accumulation),
                                 std::max(config.train.steps - batch.first_step + 1, std::int64_t{1})});
  if (!config.data.val.empty() && config.train.eval_interval > 0) steps = std::min(steps, config.train.eval_interval);
  if (config.checkpoint.interval > 0) steps = std::min(steps, config.checkpoint.interval);
  return steps;
}

/// Makes the planned step the last one before figures are read: those of the steps before it are there, too. They are read after it.
void add_figures(StartPlan& plan, const ShardedModel& model, const data::BatchPlan& batch, std::int64_t num_steps) {
  const std::int64_t num_scalars = (model.in_backward ? 0 : 1) + (model.scaler ? 2 : 0);
  const std::int64_t of_step = (batch.accumulation + num_scalars) * dtype_bytes(DType::f32);
  const std::int64_t before = (num_steps - 1) * of_step;
  add_workspace(plan.memory, before);
  plan::StepMemory& step = plan.step_memory;
  for (plan::MemoryLevel* level :
       {&step.start, &step.forward_peak, &step.backward_peak, &step.after_backward, &step.optimizer_peak, &step.end}) {
    add_workspace(*level, before);
  }
  const int num_ranks = static_cast<int>(batch.num_ranks);
  plan::MemoryLevel reading = step.end;
  add_workspace(reading,
                of_step + num_ranks * losses_gathered_at_once(num_ranks, num_steps * batch.accumulation) * dtype_bytes(DType::f32));
  constexpr auto kWorkspace = static_cast<std::size_t>(MemoryRole::workspace);
  plan.memory.peak = std::max(plan.memory.peak, reading.total);
  plan.memory.peak_by_role[kWorkspace] = std::max(plan.memory.peak_by_role[kWorkspace], reading.by_role[kWorkspace]);
}

}  // namespace

StartPlan make_start_plan(const Config& config, const Device& device, const ShardedModel& model, const data::BatchPlan& batch) {
  const DryMachine machine{.places = device.mesh->places(),
                           .rank = device.mesh->rank(),
                           .backend = device.backend,
                           .gpu = device.gpu,
                           .mode = device.device_mesh->streams().mode,
                           .make_kernels = device.make_kernels};
  const std::int64_t rounds = std::min(batch.accumulation, kMostRounds);
  const DryRun run = run_rounds(config, machine, batch, rounds);
  StartPlan start{
      .step_memory = run.step_memory, .memory = run.memory, .offload_peak = run.offload_peak, .volume = plan::volume_of(run.record, 0)};
  if (batch.accumulation > rounds) {
    const DryRun fewer = run_rounds(config, machine, batch, rounds - 1);
    repeat_difference(start.volume, plan::volume_of(fewer.record, 0), batch.accumulation - rounds);
    add_losses(start, batch.accumulation - rounds);
  }
  add_figures(start, model, batch, unread_steps(config, batch));
  for (const fsdp::Unit* unit : model.root->units()) {
    const fsdp::UnitStorage* storage = unit->storage();
    if (storage == nullptr || storage->shared_bytes() == 0) continue;
    ++start.num_sharing_units;
    start.shared_bytes += storage->shared_bytes();
  }
  return start;
}

}  // namespace mica::train
