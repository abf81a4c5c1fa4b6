// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/optim/state_dict.hpp"

#include "unit/optim/sharded_weights.hpp"

// What the tests of optimizer state dicts share: a few steps whose gradients are known.
namespace mica::optim::state_dicts {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;

inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline Values values_of(const fsdp::StateTensor& tensor) { return {tensor.view().as<float>(), tensor.view().as<float>() + tensor.numel()}; }

/// Odd sizes in two dims; b has fewer elements than ranks; d is frozen.
inline std::vector<std::vector<test::WeightSpec>> units() {
  return {{{"a", Shape{5, 3}, true, Values(15, 1)}, {"b", Shape{1}, false, Values(1, 2)}},
          {{"c", Shape{7, 2}, true, Values(14, 3)}, {"d", Shape{3}, false, Values(3, 4)}}};
}
/// The same parameters, all in one unit.
inline std::vector<std::vector<test::WeightSpec>> one_unit() {
  return {{{"a", Shape{5, 3}, true, Values(15, 1)},
           {"b", Shape{1}, false, Values(1, 2)},
           {"c", Shape{7, 2}, true, Values(14, 3)},
           {"d", Shape{3}, false, Values(3, 4)}}};
}

/// Gradients that name the parameter and the element, whatever the unit.
inline void set_grads(ShardedWeights& model, int step) {
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) {
      w.grad.clear();
      for (std::int64_t i = 0; i < w.parameter->shape.numel(); ++i) {
        w.grad.push_back(static_cast<float>((w.parameter->name[0] - 'a' + 1) * 16 + i + step));
      }
    }
  }
}
inline void freeze_d(ShardedWeights& model) {
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) w.parameter->requires_grad = w.parameter->name != "d";
  }
}
inline void train_step(ShardedWeights& model, Optimizer& optimizer, int step) {
  set_grads(model, step);
  model.pass();
  optimizer.step({.lr = 0.125});
  model.root().zero_grad();
}

using Make = std::function<std::unique_ptr<Optimizer>(fsdp::Root&)>;
inline std::unique_ptr<Optimizer> adamw(fsdp::Root& root) { return make_adamw(root, {}); }
inline std::unique_ptr<Optimizer> momentum(fsdp::Root& root) { return make_sgd(root, {.momentum = 0.5}); }

struct Mesh2D {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded{};
};
inline ShardedOptions options_of(const Mesh2D& mesh) {
  ShardedOptions options{.shard_size = mesh.shard_size, .unsharded = mesh.unsharded};
  options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  return options;
}

/// The full state after two steps on a mesh, as its rank 0 got it; tensors live on.
inline OptimStateDict trained(const Mesh2D& mesh, const Make& make, int steps = 2) {
  OptimStateDict found;
  run_local_ranks(mesh.num_ranks, [&](auto world) {
    const int rank = world->rank();
    ShardedWeights model(std::move(world), units(), options_of(mesh));
    freeze_d(model);
    const auto optimizer = make(model.root());
    for (int t = 1; t <= steps; ++t) train_step(model, *optimizer, t);
    OptimStateDict full = full_optim_state_dict(*optimizer);
    EXPECT_EQ(full.empty(), rank != 0);
    if (rank == 0) found = std::move(full);
  });
  return found;
}

}  // namespace mica::optim::state_dicts
