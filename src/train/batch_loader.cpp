// SPDX-License-Identifier: Apache-2.0
#include "mica/train/batch_loader.hpp"

#include <chrono>
#include <exception>

namespace mica::train {

BatchLoader::BatchLoader(nn::Context& context, const fsdp::DeviceMesh& device_mesh, const data::Dataset& dataset, data::Sampler sampler,
                         data::BatchPlan plan, int data_rank)
    : context_(context), device_mesh_(device_mesh), dataset_(dataset), sampler_(sampler), plan_(plan), data_rank_(data_rank) {
  invariant(sampler.num_sequences() == dataset.num_samples(), "a sampler has the samples of its dataset");
  for (Slot& slot : slots_) slot.rounds.resize(static_cast<std::size_t>(plan.accumulation));
}

nn::Tensors BatchLoader::load(std::int64_t step, std::int64_t round) {
  if (step != loaded_step_) {
    end_step();
    read(step);
    loaded_step_ = step;
  }
  const Round& wanted = slot_of(step).rounds.at(static_cast<std::size_t>(round));
  context_.sequences = wanted.batch.global_ids;
  return wanted.upload.upload(context_);
}

void BatchLoader::read_ahead(std::int64_t step) {
  end_step();
  slot_of(step).done.wait_on_host();  // rethrows an error of an earlier step
  unreadable_step_ = 0;
  try {
    read(step);
  } catch (const std::exception&) {
    // A token past the vocabulary, a file that cannot be read, any error of a user's dataset: load() throws it, if the step is run.
    unreadable_step_ = step;
  }
}

void BatchLoader::end_step() {
  if (loaded_step_ != 0) slot_of(loaded_step_).done = context_.compute.record();
  loaded_step_ = 0;
}

void BatchLoader::read(std::int64_t step) {
  Slot& slot = slot_of(step);
  if (slot.step == step) return;
  slot.step = 0;
  slot.done.wait_on_host();
  const auto begin = std::chrono::steady_clock::now();
  const bool is_idle = context_.compute.device() == DeviceKind::cpu && context_.compute.record().is_complete();
  for (std::size_t i = 0; i < slot.rounds.size(); ++i) {
    Round& round = slot.rounds[i];
    data::read_batch(dataset_, sampler_.micro_batch(plan_, step, data_rank_, static_cast<std::int64_t>(i)), round.batch);
    round.upload.stage(context_, device_mesh_, round.batch);
  }
  slot.step = step;
  if (is_idle) waited_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace mica::train
