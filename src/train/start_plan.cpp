// SPDX-License-Identifier: Apache-2.0
#include "mica/train/start_plan.hpp"

#include "mica/checkpoint/async_saver.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/plan/trace.hpp"

namespace mica::train {

StartPlan make_start_plan(const Config& config, const Device& device, const ShardedModel& model, const data::BatchPlan& batch) {
  const fsdp::Options options = fsdp_options(config);
  const std::vector<plan::UnitSpec> units = plan::units_of(*model.root);
  const Shape tokens{batch.micro_batch, config.train.seq_len};
  const std::unique_ptr<nn::Module> twin = make_module(config);
  const plan::PassProfile profile = plan::trace_pass(*twin, units, {{tokens, DType::i32}, {tokens, DType::i32}},
                                                     {.param_dtype = options.param_dtype(),
                                                      .reduce_dtype = options.reduce_dtype(),
                                                      .loss_in_backward = true,
                                                      .recompute = model.context.recompute,
                                                      .counts_inputs = device.gpu.has_value(),
                                                      .make_kernels = device.make_kernels});
  plan::StepSpec spec = plan::step_spec_of(*model.root);
  spec.micro_batches = static_cast<int>(batch.accumulation);
  spec.no_sync = config.train.gradient_sync == "no_sync";
  spec.scales_loss = model.scaler != nullptr;
  spec.steps_in_backward = model.in_backward != nullptr;
  spec.step_workspace_bytes = model.optimizer->workspace_bytes();
  for (const fsdp::UnitParameter& p : model.root->ignored_parameters()) {
    spec.ignored_bytes += p.parameter->shape.numel() * dtype_bytes(options.param_dtype());
  }
  spec.state_bytes_per_element = 0;
  for (const DType dtype : model.optimizer->state_dtypes()) spec.state_bytes_per_element += dtype_bytes(dtype);
  // On a GPU snapshots are in the host's memory.
  if (config.checkpoint.async && !device.pinned_pool)
    spec.snapshot_bytes = checkpoint::snapshot_bytes(*model.root, config.checkpoint.optimizer ? model.optimizer.get() : nullptr);
  if (device.mesh->world_size() > 1 && !device.gpu) {  // groups of GPUs do not stage in the pool
    spec.staging_bytes = [](Collective kind, std::int64_t numel, DType dtype, int num_ranks) {
      return mpi_staging_bytes(kind, numel, dtype, num_ranks);
    };
  }
  StartPlan start{.memory = plan::make_memory_plan(units, spec, profile), .volume = plan::volume_of_step(units, spec, profile)};
  for (const plan::UnitSpec& unit : units) {
    if (!unit.shares_masters) continue;
    ++start.num_sharing_units;
    start.shared_bytes += unit.shard_numel * dtype_bytes(DType::f32);
  }
  return start;
}

}  // namespace mica::train
