// SPDX-License-Identifier: Apache-2.0
#include "mica/train/step_runner.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "mica/core/rounding.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/optim/clip_grad_norm.hpp"
#include "mica/tensor/fetch.hpp"

namespace mica::train {
namespace {

void end(StepPhase phase, const AfterPhase& after) {
  if (after) after(phase);
}

}  // namespace

StepRunner::StepRunner(const Config& config, ShardedModel& model, const data::Dataset& dataset, data::BatchPlan plan, int data_rank)
    : model_(model),
      plan_(plan),
      batches_(model.context, model.root->device_mesh(), dataset,
               data::Sampler(dataset.num_samples(), data::data_order_from_name(config.data.order), config.run.seed), plan, data_rank),
      no_sync_(config.train.gradient_sync == "no_sync"),
      deterministic_(config.train.deterministic),
      grad_clip_(config.optim.grad_clip > 0 ? config.optim.grad_clip : std::numeric_limits<double>::infinity()),
      grad_weight_(config.train.deterministic ? 1.0 : 1.0 / static_cast<double>(plan.accumulation)),
      dloss_(model.context.make({1}, DType::f32, MemoryRole::workspace)) {
  model.context.kernels.fill(model.context.compute, dloss_, grad_weight_);
}

StepFigures StepRunner::run(std::int64_t step, double lr, const AfterPhase& after) {
  nn::Context& context = model_.context;
  context.training = true;
  context.step = static_cast<std::uint64_t>(step);

  StepFigures figures;
  figures.losses = context.make({plan_.accumulation}, DType::f32, MemoryRole::workspace);
  const Tensor dloss = model_.scaler ? model_.scaler->scaled(grad_weight_) : dloss_;
  if (model_.in_backward) model_.in_backward->begin_step(lr);
  run_passes(step, dloss, figures.losses, after);
  if (model_.in_backward) {
    // Every unit has been stepped in backward, and its gradient freed.
  } else if (model_.scaler) {
    update_scaled(lr, figures);
  } else {
    update(step, lr, figures);
  }
  end(StepPhase::update, after);
  model_.root->zero_grad();
  batches_.read_ahead(step + 1);
  return figures;
}

void StepRunner::run_passes(std::int64_t step, const Tensor& dloss, TensorView losses, const AfterPhase& after) {
  for (std::int64_t round = 0; round < plan_.accumulation; ++round) {
    if (no_sync_) model_.root->set_gradient_sync(round + 1 == plan_.accumulation);
    nn::Tensors batch = batches_.load(step, round);
    end(StepPhase::batch, after);
    run_round(std::move(batch), dloss, losses.slice(round, 1), after);
  }
  if (deterministic_) fsdp::average_grads(*model_.root, plan_.accumulation * plan_.num_ranks);
}

void StepRunner::repeat_passes(std::int64_t step) {
  const Tensor losses = model_.context.make({plan_.accumulation}, DType::f32, MemoryRole::workspace);
  run_passes(step, dloss_, losses, {});
}

void StepRunner::update(std::int64_t step, double lr, StepFigures& figures) {
  const optim::ClipCoefficient clip = optim::clip_coefficient(*model_.root, grad_clip_);
  figures.grad_norm = clip.norm;
  figures.is_rejected = hooks_.accept && !hooks_.accept(step, figures);
  if (figures.is_rejected) return;
  if (hooks_.before_update) hooks_.before_update();
  step_optimizer({.lr = lr, .grad_scale = clip.coefficient.view()});
  if (hooks_.after_update) hooks_.after_update();
}

void StepRunner::update_scaled(double lr, StepFigures& figures) {
  optim::GradScaler& scaler = *model_.scaler;
  const nn::Context& context = model_.context;
  for (Tensor* each : {&figures.loss_scale, &figures.skipped}) *each = context.make({1}, DType::f32, MemoryRole::workspace);
  context.kernels.copy(context.compute, scaler.scale(), figures.loss_scale);
  scaler.unscale();
  context.kernels.copy(context.compute, scaler.found_inf(), figures.skipped);
  const optim::ClipCoefficient clip = optim::clip_coefficient(*model_.root, grad_clip_);
  step_optimizer({.lr = lr, .grad_scale = clip.coefficient.view(), .skip = scaler.found_inf(), .skipped_steps = scaler.skipped_steps()});
  scaler.update();
  figures.grad_norm = clip.norm;
}

void StepRunner::step_optimizer(const optim::StepArgs& args) {
  Stream& compute = model_.context.compute;
  const bool is_timed = compute.device() == DeviceKind::cpu;
  if (is_timed) optimizer_time_.start(compute);
  model_.optimizer->step(args);
  if (is_timed) optimizer_time_.stop(compute);
}

void StepRunner::run_round(nn::Tensors batch, const Tensor& dloss, TensorView loss, const AfterPhase& after) {
  nn::Context& context = model_.context;
  nn::Record record;
  const nn::Tensors ys = model_.module->forward(context, std::move(batch), &record);
  end(StepPhase::forward, after);
  model_.module->backward(context, std::move(record), {dloss});
  context.kernels.copy(context.compute, ys[0], loss);
  end(StepPhase::backward, after);
}

namespace {

/// Gathers what each rank's `fill` wrote: [ranks * numel], by rank, on the host. @collective
std::vector<float> gather_losses(ShardedModel& model, std::int64_t numel, const std::function<void(TensorView mine)>& fill) {
  const nn::Context& context = model.context;
  ProcessGroup& world = model.root->device_mesh().metrics_group();
  const Tensor losses = context.make({world.num_ranks(), numel}, DType::f32, MemoryRole::workspace);
  const TensorView mine = losses.view().slice(world.rank() * numel, numel);
  fill(mine);
  world.all_gather(context.compute, "losses", mine, losses);
  return fetch<float>(context.kernels, context.compute, losses);
}

}  // namespace

std::int64_t most_unread_steps(std::int64_t accumulation) {
  constexpr std::int64_t kMostUnreadLosses = 1 << 14;
  return std::max(kMostUnreadLosses / accumulation, std::int64_t{1});
}

std::int64_t losses_gathered_at_once(int num_ranks, std::int64_t num_losses) {
  constexpr std::int64_t kMostGathered = 1 << 16;
  return std::min(std::max(kMostGathered / num_ranks, std::int64_t{1}), num_losses);
}

std::vector<double> mean_losses(ShardedModel& model, const std::vector<const StepFigures*>& steps) {
  if (steps.empty()) return {};
  const nn::Context& context = model.context;
  const int num_ranks = model.root->device_mesh().metrics_group().num_ranks();
  const std::int64_t rounds = steps.front()->losses.numel();
  const std::int64_t num_losses = static_cast<std::int64_t>(steps.size()) * rounds;
  const std::int64_t at_once = losses_gathered_at_once(num_ranks, num_losses);
  std::vector<double> sums(steps.size());
  for (std::int64_t begin = 0; begin < num_losses; begin += at_once) {
    const std::int64_t num = std::min(at_once, num_losses - begin);
    const std::vector<float> values = gather_losses(model, num, [&](const TensorView& mine) {
      for (std::int64_t at = begin; at < begin + num;) {  // a part may begin and end inside a step
        const std::int64_t round = at % rounds, length = std::min(rounds - round, begin + num - at);
        const TensorView losses = steps[static_cast<std::size_t>(at / rounds)]->losses.view().slice(round, length);
        context.kernels.copy(context.compute, losses, mine.slice(at - begin, length));
        at += length;
      }
    });
    for (std::int64_t i = 0; i < num; ++i) {
      double& sum = sums[static_cast<std::size_t>((begin + i) / rounds)];
      for (int rank = 0; rank < num_ranks; ++rank) sum += static_cast<double>(values[static_cast<std::size_t>(rank * num + i)]);
    }
  }
  std::vector<double> means;
  for (const double sum : sums) means.push_back(sum / static_cast<double>(rounds * num_ranks));
  return means;
}

std::int64_t num_evaluated(const data::Dataset& dataset, const Evaluation& evaluation) {
  return evaluation.num_sequences == 0 ? dataset.num_samples() : std::min(evaluation.num_sequences, dataset.num_samples());
}

std::optional<double> evaluate(ShardedModel& model, const data::Dataset& dataset, const Evaluation& evaluation, const HostComm& comm) {
  nn::Context& context = model.context;
  fsdp::DeviceMesh& device_mesh = model.root->device_mesh();
  const std::int64_t num_ranks = device_mesh.mesh().world_size();
  const std::int64_t num_sequences = num_evaluated(dataset, evaluation);
  const std::int64_t per_batch = evaluation.sequences_at_once;
  const std::int64_t num_batches = divide_up(num_sequences, per_batch);
  const std::int64_t rounds = divide_up(num_batches, num_ranks);
  const auto numel_of = [&](std::int64_t batch) { return std::min(per_batch, num_sequences - batch * per_batch); };

  context.training = false;
  data::Batch batch;
  BatchUpload upload;
  bool is_given_up = false;
  const std::vector<float> values = gather_losses(model, rounds, [&](const TensorView& mine) {
    for (std::int64_t round = 0; round < rounds && !is_given_up; ++round) {
      // All ranks take part in each round's all-gathers. A rank without a batch computes the last batch, and its loss is dropped below.
      const std::int64_t b = std::min(round * num_ranks + device_mesh.mesh().rank(), num_batches - 1);
      std::vector<data::SampledSequence> sequences;
      for (std::int64_t i = 0; i < numel_of(b); ++i) {
        sequences.push_back({.global_id = b * per_batch + i, .epoch = 0, .sequence = b * per_batch + i});
      }
      comm.agree([&] { data::read_batch(dataset, sequences, batch); });
      context.sequences = batch.global_ids;
      upload.stage(context, device_mesh, batch);
      const nn::Tensors ys = model.module->forward(context, upload.upload(context), nullptr);
      context.kernels.copy(context.compute, ys[0], mine.slice(round, 1));
      context.compute.synchronize();  // `batch` is used again
      is_given_up = evaluation.is_given_up && round + 1 < rounds && evaluation.is_given_up(round + 1);
    }
  });
  if (is_given_up) return std::nullopt;
  double sum = 0;
  for (std::int64_t b = 0; b < num_batches; ++b) {
    const auto at = static_cast<std::size_t>(b % num_ranks * rounds + b / num_ranks);
    sum += static_cast<double>(values[at]) * static_cast<double>(numel_of(b));
  }
  return sum / static_cast<double>(num_sequences);
}

}  // namespace mica::train
