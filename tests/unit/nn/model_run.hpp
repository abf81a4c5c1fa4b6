// SPDX-License-Identifier: Apache-2.0
// A small GPT-2 with storage and batches, run once or more.
#pragma once

#include <string>
#include <vector>

#include "mica/nn/models/gpt2.hpp"

#include "nn_testing.hpp"

namespace mica::nn::testing {

inline Gpt2Config small_gpt2(double dropout = 0) {
  return {.layers = 2, .heads = 3, .width = 9, .context = 8, .vocab_size = 13, .dropout = dropout};
}

/// A model with storage, and batches.
struct ModelRun {
  explicit ModelRun(double dropout = 0, StreamMode mode = StreamMode::inlined)
      : rig(KernelsKind::cpu, mode), model(small_gpt2(dropout)), storage(model, rig.context) {}

  void at(int batch) {
    rig.use_batch(2, 10 * batch);
    rig.context.step = static_cast<std::uint64_t>(batch) + 1;
  }
  Tensors inputs(int batch) {
    return {rig.tokens({2, 7}, 13, "ids" + std::to_string(batch)), rig.tokens({2, 7}, 13, "targets" + std::to_string(batch))};
  }
  Tensors forward(int batch, Record* record) {
    at(batch);
    return model.forward(rig.context, inputs(batch), record);
  }
  void backward(Record& record) { model.backward(rig.context, std::move(record), {rig.scalar(1)}); }
  void set_checkpointed(const std::string& type_name, bool on = true) {
    model.for_each_module([&](const std::string&, Module& module) {
      if (module.type_name() == type_name) module.set_checkpointed(on);
    });
  }

  Rig rig;
  Gpt2 model;
  PlainParameters storage;
};

/// Gradients and loss of one batch.
struct Result {
  std::vector<float> loss;
  std::vector<NamedGradient> gradients;
  bool operator==(const Result&) const = default;
};

inline Result run_one(ModelRun& run, int batch = 0) {
  Record record;
  const Tensors ys = run.forward(batch, &record);
  run.backward(record);
  Result result{floats(run.rig, ys[0]), gradients(run.rig, run.model)};
  run.storage.zero_grad();
  return result;
}

}  // namespace mica::nn::testing
